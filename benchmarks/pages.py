"""Pages to measure with: a PDF of A4 text pages, each one different, and their pictures."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pymupdf

from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from deepseek_ocr_loaders.page import Picture

TEXT = (
    "the quick brown fox jumps over a lazy dog while seven wizards make toxic brew for an evil "
    "queen and jack who vexed the grumpy boys by night quietly boxed five dozen liquor jugs near "
    "river banks where pages of dense print were scanned at dawn"
)
WORDS = TEXT.split()


def make_pdf(path: Path, pages: int, *, words: int = 550, seed: int = 0) -> Path:
    """Write a PDF of A4 pages of running text.

    Args:
        path: Where.
        pages: How many.
        words: On each page; 550 fill it at 11 points.
        seed: The same seed gives the same text.
    """
    chance = random.Random(seed)
    with pymupdf.open() as document:
        for number in range(1, pages + 1):
            page = document.new_page(width=595, height=842)
            text = f"Page {number}. " + " ".join(chance.choices(WORDS, k=words))
            page.insert_textbox(pymupdf.Rect(60, 60, 535, 790), text, fontsize=11)
        document.save(path, garbage=1, deflate=True)
    return path


def draw(path: Path, pages: int, *, model: str = "deepseek-ai/DeepSeek-OCR") -> list[Picture]:
    """Draw the first pages of a file as the loaders do."""
    with open_source(path, settings=Settings()) as source:
        return [source.picture(index, model=model) for index in range(pages)]
