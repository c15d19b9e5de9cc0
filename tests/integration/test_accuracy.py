"""How well the embedded engine reads, and whether its boxes lie where the text is."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pymupdf
import pytest
from support.embedded import (
    SAMPLES,
    EmbeddedServer,
    blocks,
    draw_sample,
    error_rate,
    expected_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("rapidocr")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@cache
def blocks_of(server: EmbeddedServer, name: str) -> list[tuple[str, tuple[int, ...], str]]:
    return blocks(server.content(draw_sample(name)))


def read(server: EmbeddedServer, name: str) -> str:
    return "\n\n".join(text.lstrip("# ") for _, _, text in blocks_of(server, name))


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("scan", 0.03),
        ("mixed_scan", 0.05),
        ("born_digital", 0.03),
        ("two_columns", 0.03),
        ("table", 0.03),
        ("mixed", 0.05),
    ],
)
def test_characters_read_wrong(server: EmbeddedServer, name: str, most: float) -> None:
    assert error_rate(read(server, name), expected_text(name)) <= most


@pytest.mark.parametrize("name", ["scan", "mixed_scan"])
def test_the_scans_have_no_text_layer(name: str) -> None:
    with pymupdf.open(SAMPLES / f"{name}.pdf") as document:
        assert not any(page.get_text().strip() for page in document)
        assert all(page.get_images() for page in document)


def test_paragraphs_of_two_columns_come_in_order_and_whole(server: EmbeddedServer) -> None:
    found = read(server, "two_columns").split("\n\n")
    expected = expected_text("two_columns").split("\n\n")
    assert len(found) == len(expected)
    for paragraph, wanted in zip(found, expected, strict=True):
        assert error_rate(paragraph, wanted) <= 0.03


@pytest.mark.parametrize("name", ["born_digital", "two_columns", "table", "mixed"])
def test_the_box_of_its_block_covers_each_word(server: EmbeddedServer, name: str) -> None:
    answer = blocks_of(server, name)
    with pymupdf.open(SAMPLES / f"{name}.pdf") as document:
        page = document[0]
        words = page.get_text("words")
        across, down = 999 / page.rect.width, 999 / page.rect.height
    covered = 0
    for x1, y1, x2, y2, word, *_ in words:
        place = pymupdf.Rect(x1 * across, y1 * down, x2 * across, y2 * down)
        # The block that says the word, not just any; half a unit is what rounding takes.
        covered += any(
            _plain(word) in _plain(text)
            and pymupdf.Rect(left - 0.5, top - 0.5, right + 0.5, bottom + 0.5).contains(place)
            for _, (left, top, right, bottom), text in answer
        )
    assert covered >= 0.95 * len(words)


def _plain(text: str) -> str:
    return "".join(text.split())
