#!/usr/bin/env python3
"""Hugging Face Transformers against vLLM: DeepSeek-OCR-2, without weights, on the same GPU.

    benchmarks/bench_transformers.py --model FOLDER              # Transformers, then vLLM
    benchmarks/bench_transformers.py --model FOLDER --only hf    # one of them: hf, vllm

FOLDER is what `scripts/make_dummy_model.py FOLDER --full --ocr-2` writes. Transformers uses its own
class for the model (5.17 and newer), in bfloat16 with its fastest attention; vLLM its own.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bare_client
from gpu_watch import GpuWatch
from pages import draw, make_pdf
from PIL import Image
from plain_vllm import OFFICIAL, PlainVllm
from table import Table

if TYPE_CHECKING:
    from deepseek_ocr_loaders.page import Picture

COLUMNS = ("DeepSeek-OCR-2", "pages", "at once", "pages/s", "tokens/s", "GPU busy %", "start s")


class Transformers:
    """The model in this process."""

    def __init__(self, folder: Path, device: str) -> None:
        import torch  # noqa: PLC0415 - not needed for vLLM alone
        from transformers import (  # noqa: PLC0415
            DeepseekOcr2Config,
            DeepseekOcr2ForConditionalGeneration,
            DeepseekOcr2ImageProcessor,
            DeepseekOcr2Processor,
            PreTrainedTokenizerFast,
        )

        self.torch = torch
        self.device = device
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"),
            bos_token="<｜begin▁of▁sentence｜>",
            eos_token="<｜end▁of▁sentence｜>",
            pad_token="<｜▁pad▁｜>",
            padding_side="left",
        )
        self.processor = DeepseekOcr2Processor(DeepseekOcr2ImageProcessor(), tokenizer)
        config = DeepseekOcr2Config(**config_of(json.loads((folder / "config.json").read_text())))
        with torch.device(device):
            torch.set_default_dtype(torch.bfloat16)
            self.model = DeepseekOcr2ForConditionalGeneration(config).eval()
            torch.set_default_dtype(torch.float32)
        self.prompt = f"<image>\n{bare_client.PROMPT}"

    def read(self, pictures: list[Picture], tokens: int) -> int:
        """Read pages as one batch, and give how many tokens came."""
        images = [Image.open(io.BytesIO(picture.data)).convert("RGB") for picture in pictures]
        inputs = self.processor(
            images=images, text=[self.prompt] * len(images), return_tensors="pt", padding=True
        ).to(self.device)
        for name, value in inputs.items():
            if self.torch.is_tensor(value) and value.is_floating_point():
                inputs[name] = value.to(self.torch.bfloat16)
        inputs.pop("token_type_ids", None)
        with self.torch.inference_mode():
            out = self.model.generate(
                **inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
            )
        return int((out.shape[1] - inputs["input_ids"].shape[1]) * out.shape[0])


def config_of(original: dict[str, Any]) -> dict[str, Any]:
    """Give the model's own `config.json` in the words of Transformers' class."""
    language = original["language_config"]
    names = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
        *("bos_token_id", "eos_token_id", "n_group", "topk_group", "n_routed_experts"),
        *("n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "topk_method"),
    )
    text = {name: language[name] for name in names}
    dense = language["first_k_dense_replace"]
    layers = language["num_hidden_layers"]
    text["mlp_layer_types"] = ["dense"] * dense + ["sparse"] * (layers - dense)
    # Qwen2-0.5B, as DeepSeek's code builds it: 24 layers of 896.
    encoder = {
        "hidden_size": original["vision_config"]["width"]["qwen2-0-5b"]["dim"],
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 1,
    }
    return {"text_config": text, "vision_config": {"encoder_config": encoder}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--only", choices=("hf", "vllm"))
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--single", type=int, default=2, help="pages, one after the other")
    parser.add_argument("--batch", type=int, default=32, help="pages in one batch")
    parser.add_argument("--vllm-pages", type=int, default=256, help="pages at once with vLLM")
    parser.add_argument("--vllm-args", default="")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pdf = make_pdf(folder / "pages.pdf", max(given.batch, 32))
        pictures = draw(pdf, max(given.batch, 32), model="deepseek-ai/DeepSeek-OCR-2")
        table = Table(COLUMNS)
        if given.only != "vllm":
            began = time.perf_counter()
            model = Transformers(given.model, given.device)
            model.read(pictures[:1], 8)
            start: float | None = time.perf_counter() - began
            for name, pages, at_once in (
                ("Transformers, page after page", given.single, 1),
                ("Transformers, one batch", given.batch, given.batch),
            ):
                with GpuWatch() as gpu:
                    began = time.perf_counter()
                    tokens = sum(
                        model.read(pictures[first : first + at_once], given.tokens)
                        for first in range(0, pages, at_once)
                    )
                    seconds = time.perf_counter() - began
                cells = (pages, at_once, pages / seconds, tokens / seconds, gpu.busy, start)
                table.row(name, *cells)
                start = None
            del model.model
            model.torch.cuda.empty_cache()
        if given.only != "hf":
            extra = (*OFFICIAL[2:], *given.vllm_args.split())
            log = folder / "vllm.log"
            server = stack.enter_context(PlainVllm(str(given.model), extra, log=log, dummy=True))
            start = server.wait()
            length = bare_client.fixed_length(given.tokens)
            requests = bare_client.bodies(pictures, server.model, length)
            bare_client.send([server.base_url], requests[:32], pages=32, concurrency=32)
            for name, pages, at_once in (
                ("vLLM, page after page", 2 * given.single, 1),
                ("vLLM, all at once", given.vllm_pages, given.vllm_pages),
            ):
                with GpuWatch() as gpu:
                    load = bare_client.send(
                        [server.base_url], requests, pages=pages, concurrency=at_once
                    )
                rate = load.completion_tokens / load.seconds
                table.row(name, pages, at_once, pages / load.seconds, rate, gpu.busy, start)
                start = None


if __name__ == "__main__":
    main()
