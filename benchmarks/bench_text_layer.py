"""Measure which text layers `ocr="auto"` reads, against an OCR engine on the drawn page.

Up to three pages of each PDF of the corpus that have any text are read by RapidOCR. A layer is
right if its pairs of letters are those that the engine sees, at least four in five both ways.

    python benchmarks/corpus.py        # downloads the corpus
    python benchmarks/bench_text_layer.py [FOLDER]
"""

from __future__ import annotations

import io
import re
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image
from rapidocr import RapidOCR

from deepseek_ocr_loaders.errors import DeepSeekOCRError
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import open_source

ALIKE = 0.8
FEWEST = 10


def pairs(text: str) -> Counter[str]:
    letters = re.sub(r"\W", "", unicodedata.normalize("NFKC", text).lower())
    return Counter(letters[i : i + 2] for i in range(len(letters) - 1))


def alike(layer: str, seen: str) -> float:
    one, two = pairs(layer), pairs(seen)
    common = sum((one & two).values())
    return min(common / max(1, sum(one.values())), common / max(1, sum(two.values())))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/deepseek-ocr-corpus")
    if not any(folder.rglob("*.pdf")):
        sys.exit(f"{folder} holds no PDF; benchmarks/corpus.py downloads some")
    engine = RapidOCR()
    table: Counter[tuple[bool, bool]] = Counter()
    for path in sorted(folder.rglob("*.pdf")):
        try:
            opened = open_source(path, settings=Settings())
        except DeepSeekOCRError:
            continue
        with opened:
            last = opened.info.total_pages - 1
            for index in sorted({0, last // 2, last}):
                try:
                    text = opened._file.text(index)  # noqa: SLF001 - what is judged
                    blocks = opened.text_layer(index)
                    picture = opened.picture(index)
                except (DeepSeekOCRError, ValueError):
                    continue
                if len("".join(text.split())) < FEWEST:
                    continue
                image = np.array(Image.open(io.BytesIO(picture.data)).convert("RGB"))
                right = alike(text, "\n".join(engine(image).txts or ())) >= ALIKE
                table[right, blocks is not None] += 1
                print(f"{path.name} page {index + 1}: right {right}, read {blocks is not None}")
    print(
        f"right layers: {table[True, True]} read, {table[True, False]} sent; "
        f"wrong layers: {table[False, True]} read, {table[False, False]} sent"
    )


if __name__ == "__main__":
    main()
