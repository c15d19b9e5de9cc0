"""Show that sending a scan as JPEG costs the embedded engine no accuracy.

Pages of known words are drawn, given the grain of a scanner, and read by RapidOCR twice: from the
picture without loss and from the picture as it is sent.

    python benchmarks/bench_jpeg.py [PAGES]
"""

from __future__ import annotations

import io
import random
import re
import sys
from collections import Counter

import numpy as np
import pymupdf
from bench_render import text_page
from PIL import Image, ImageChops
from rapidocr import RapidOCR

from deepseek_ocr_loaders.encode import encode, encode_png


def scan(seed: int) -> tuple[Image.Image, str]:
    """Give a page as it comes from a scanner, and what is printed on it."""
    document = pymupdf.open()
    text_page(document, random.Random(seed))
    page = document[0]
    pixmap = page.get_pixmap(
        matrix=pymupdf.Matrix(1280 / 595, 1920 / 842), colorspace=pymupdf.csGRAY
    )
    image = Image.frombytes("L", (pixmap.width, pixmap.height), pixmap.samples)
    grain = Image.effect_noise(image.size, 8 + 6 * (seed % 3))
    return ImageChops.add(image.point(lambda value: 30 + value * 0.8), grain, 1, -128), (
        page.get_text()
    )


def mistakes(found: str, printed: str) -> float:
    """Give the share of printed words that were not found."""
    words = Counter(re.findall(r"\w+", printed.lower()))
    missing = words - Counter(re.findall(r"\w+", found.lower()))
    return sum(missing.values()) / sum(words.values())


def main() -> None:
    engine = RapidOCR()
    totals: Counter[str] = Counter()
    pages = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    for seed in range(pages):
        image, printed = scan(seed)
        sent, media_type = encode(image)
        for name, data in (("lossless", encode_png(image)), (f"sent as {media_type}", sent)):
            picture = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
            share = mistakes(" ".join(engine(picture).txts or ()), printed)
            totals[name] += share / pages
            print(
                f"page {seed + 1}, {name}: {share:.2%} of the words wrong, {len(data) // 1024} kB"
            )
    print(f"{pages} pages of about {len(printed.split())} words")
    print(", ".join(f"{name}: {share:.2%}" for name, share in totals.items()))


if __name__ == "__main__":
    main()
