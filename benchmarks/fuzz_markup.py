"""Mutilate answers at random and check that reading them loses, doubles and moves nothing.

    python benchmarks/fuzz_markup.py --inputs 200000 --seed 1

Each input is a composed answer, or a piece of the published sample in `tests/data`, with up to
twelve cuts, repetitions, swaps and insertions. Checked for each, under all prompts in turn:

- parsing does not raise, and an answer that was cut leaves no whole tag in its text
- each marked word outside of boxes is in the text once for each time it is in the input, in
  order; no word is there that is not in the input
- the text is a subsequence of the input: nothing is invented, doubled or moved
- boxes are sorted and on the page, and what the blocks say comes out as Documents
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections import Counter
from pathlib import Path

from deepseek_ocr_loaders.answer import interpret
from deepseek_ocr_loaders.documents import DocumentBuilder
from deepseek_ocr_loaders.markup import parse, without_leaked_tokens
from deepseek_ocr_loaders.page import PageResult, SourceInfo
from deepseek_ocr_loaders.settings import Settings

SAMPLE = Path(__file__).parents[1] / "tests" / "data" / "real_output_22_pages.mmd"
LABELS = ("text", "title", "sub_title", "table", "table_caption", "image", "image_caption", "odd")
PROMPTS = ("markdown", "ocr", "free", "Locate <|ref|>x<|/ref|> in the image.")
PIECES = (
    "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "[[", "]]", "[", "]", ",", " - ", "<|", "|>",
    "<|re", "</det|>", "\n", "\n\n", "<table>", "</table>", "<tr><td>", "</td></tr>", "text",
    "[[1, 2, 3, 4]]", "[[9, 8, 7]]", "[[-5, 0, 1200, 10]]", "<｜end▁of▁sentence｜>", "title",
    "text[[1, 2, 3, 4]]\n", "<center>", "\\(x\\)", "合計 [1]", "\x00", "\ud800", "<|grounding|>",
)  # fmt: skip
WORD = re.compile(r"Wordy[0-9]+Mark")
# What stands in a box tag, up to its end or to its last bracket, may pass for junk in a box.
NO_TAG = r"(?:(?!<\|/?(?:ref|det)\|>)(?s:.))*"
IN_BOX = re.compile(rf"<\|det\|>(?:{NO_TAG}<\|/det\|>|{NO_TAG.replace('(?s:.)', '.')}\])")
INFO = SourceInfo("x.pdf", "x.pdf", "00" * 32, "pdf", 1, {})


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--inputs", type=int, default=200_000)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    chance = random.Random(given.seed)
    pages = SAMPLE.read_text(encoding="utf-8").split("<--- Page Split --->\n")[:-1]
    builders = [
        DocumentBuilder(INFO, Settings.create({"mode": mode, "output": output, "layout": True}))
        for mode in ("page", "element")
        for output in ("markdown", "text", "raw")
    ]
    counts: Counter[str] = Counter()
    times: list[float] = []
    for number in range(given.inputs):
        composed = number % 4 != 0
        raw = mutilated(answer(chance) if composed else excerpt(chance, pages), chance)
        prompt = PROMPTS[number % 3] if number % 16 else PROMPTS[3]
        started = time.process_time()
        reason = chance.choice(("stop", "length"))
        builder = builders[number % len(builders)]
        check(raw, prompt, reason, counts=counts, builder=builder, marked=composed)
        times.append(time.process_time() - started)
    print(f"{given.inputs} inputs, seed {given.seed}: no failure")
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    milliseconds = [1000 * seconds for seconds in times]
    print(
        f"CPU time an input, checks included: median {statistics.median(milliseconds):.2f} ms, "
        f"99 % under {statistics.quantiles(milliseconds, n=100)[98]:.2f} ms, "
        f"longest {max(milliseconds):.1f} ms"
    )


def answer(chance: random.Random) -> str:
    blocks = []
    for number in range(chance.randint(1, 8)):
        label = chance.choice(LABELS)
        words = " ".join(f"Wordy{number * 10 + at}Mark" for at in range(chance.randint(0, 4)))
        if label == "table":
            words = f"<table><tr><td>{words}</td></tr></table>"
        box = ", ".join(str(chance.randint(0, 999)) for _ in range(4))
        blocks.append(f"<|ref|>{label}<|/ref|><|det|>[[{box}]]<|/det|>\n{words}  \n\n")
    return "".join(blocks)


def excerpt(chance: random.Random, pages: list[str]) -> str:
    page = chance.choice(pages)
    start = chance.randint(0, max(0, len(page) - 400))
    return page[start : start + chance.randint(100, 2000)]


def mutilated(raw: str, chance: random.Random) -> str:
    for _ in range(chance.randint(0, 12)):
        at = chance.randint(0, len(raw))
        length = chance.choice((1, 2, 5, 20, 60))
        match chance.randint(0, 4):
            case 0:
                raw = raw[:at] + raw[at + length :]
            case 1:
                raw = raw[:at] + raw[at : at + length] * 2 + raw[at + length :]
            case 2:
                other = chance.randint(0, len(raw))
                raw = raw[:at] + raw[other : other + length] + raw[at:]
            case _:
                raw = raw[:at] + chance.choice(PIECES) + raw[at:]
    return raw


def check(
    raw: str,
    prompt: str,
    reason: str,
    *,
    counts: Counter[str],
    builder: DocumentBuilder,
    marked: bool,
) -> None:
    said = "\n".join(block.text for block in parse(raw, prompt=prompt))
    kept = without_leaked_tokens(raw)
    require(is_subsequence("".join(said.split()), "".join(kept.split())), "invented", raw)
    if marked:
        outside = WORD.findall(IN_BOX.sub(" ", kept))
        require(is_subsequence(outside, WORD.findall(said)), "lost a word", raw)
    found = interpret(raw, finish_reason=reason, has_ink=True, prompt=prompt)
    counts[f"{reason} {found.status.value}"] += 1
    for block in found.blocks:
        counts["blocks"] += 1
        counts.update(block.flags)
        for box in block.boxes:
            require(0 <= box.x1 <= box.x2 <= 999 and 0 <= box.y1 <= box.y2 <= 999, "box", raw)
        for tag in ("<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>"):
            require(tag not in block.text, "left a tag", raw)
    page = PageResult(0, "1", 1280, 1920, 0, found.status, found.blocks, raw)
    for document in builder.add(page):
        document.text.encode()
        counts["documents"] += 1


def is_subsequence(part: list[str] | str, whole: list[str] | str) -> bool:
    rest = iter(whole)
    return all(any(each == other for other in rest) for each in part)


def require(holds: bool, what: str, raw: str) -> None:  # noqa: FBT001 - an assertion with a name
    if not holds:
        print(f"{what}: {raw!r}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
