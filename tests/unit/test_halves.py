"""Cutting a page where nothing is written, and putting two halves together."""

from __future__ import annotations

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from deepseek_ocr_loaders.halves import Half, join, on_page, split
from deepseek_ocr_loaders.page import Block, Box, Picture


def _picture(image: Image.Image, kind: str = "PNG") -> Picture:
    stream = io.BytesIO()
    image.save(stream, kind)
    return Picture(stream.getvalue(), f"image/{kind.lower()}", *image.size)


def _page(gaps: list[tuple[int, int]], height: int = 1000, paper: int = 255) -> Image.Image:
    """A page of strokes but for rows of paper."""
    image = Image.new("L", (400, height), paper)
    draw = ImageDraw.Draw(image)
    for x in range(0, 400, 10):
        draw.rectangle((x, 0, x + 3, height), fill=10)
    for top, bottom in gaps:
        draw.rectangle((0, top, 400, bottom - 1), fill=paper)
    return image


def _halves(image: Image.Image, kind: str = "PNG") -> tuple[Half, Half]:
    found = split(_picture(image, kind))
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_the_cut_is_in_a_gap(kind: str) -> None:
    upper, lower = _halves(_page([(100, 130), (600, 640), (900, 930)]), kind)
    cut = upper.picture.height
    assert cut == pytest.approx(620, abs=3)
    assert (upper.top, lower.top, lower.picture.height) == (0, cut, 1000 - cut)
    assert not upper.overlaps
    assert upper.picture.media_type == "image/png"
    with Image.open(io.BytesIO(lower.picture.data)) as image:
        assert image.size == (400, 1000 - cut) == (lower.picture.width, lower.picture.height)


def test_of_many_gaps_the_widest_and_then_the_nearest() -> None:
    lines = [(y, y + 10) for y in range(0, 1000, 40)]
    assert _halves(_page(lines))[1].top == pytest.approx(500, abs=40)
    assert _halves(_page([*lines, (605, 640)]))[1].top == pytest.approx(622, abs=8)
    # Far from the middle there is no half.
    assert _halves(_page([*lines, (100, 200)]))[1].top == pytest.approx(500, abs=40)


def test_grey_paper_specks_and_colour() -> None:
    rng = random.Random(7)
    image = _page([(440, 480)], paper=205).convert("RGB")
    for _ in range(40):
        image.putpixel((rng.randrange(400), rng.randrange(440, 480)), (200, 190, 215))
    upper, _ = _halves(image)
    assert upper.picture.height == pytest.approx(460, abs=2)


def test_a_dark_page() -> None:
    image = Image.new("L", (400, 1000), 20)
    draw = ImageDraw.Draw(image)
    for y in [*range(0, 480, 40), *range(560, 1000, 40)]:
        draw.rectangle((20, y, 380, y + 30), fill=240)
    upper, _ = _halves(image)
    assert 470 <= upper.picture.height <= 560


def test_a_page_without_a_gap_overlaps() -> None:
    upper, lower = _halves(_page([]))
    assert upper.overlaps
    assert lower.overlaps
    assert (upper.picture.height, lower.top) == (560, 440)
    assert lower.top + lower.picture.height == 1000


def test_vertical_rules_are_ink() -> None:
    image = Image.new("L", (400, 1000), 255)
    draw = ImageDraw.Draw(image)
    for x in range(0, 400, 50):
        draw.line((x, 0, x, 999), fill=0, width=2)
    assert _halves(image)[0].overlaps


def test_a_low_page_is_not_cut() -> None:
    assert split(_picture(Image.new("L", (800, 40), 255))) is None


def test_ink_is_told_for_each_half() -> None:
    image = Image.new("L", (400, 1000), 255)
    ImageDraw.Draw(image).rectangle((50, 700, 300, 800), fill=0)
    upper, lower = _halves(image)
    assert (upper.picture.has_ink, lower.picture.has_ink) == (False, True)


@given(
    cut=st.integers(300, 700),
    y=st.tuples(st.integers(0, 999), st.integers(0, 999)),
)
def test_boxes_come_back_to_the_page(cut: int, y: tuple[int, int]) -> None:
    """Within a thousandth of the page of where they are in the pixels of the half."""
    for top, height in ((0, cut), (cut, 1000 - cut)):
        block = Block("text", "x", (Box(3, min(y), 900, max(y)),))
        box = on_page(block, top, height, 1000).boxes[0]
        assert (box.x1, box.x2) == (3, 900)
        for there, here in ((min(y), box.y1), (max(y), box.y2)):
            assert here * 1000 / 999 == pytest.approx(top + there * height / 999, abs=1)
            assert 0 <= here <= 999


def _texts(blocks: tuple[Block, ...]) -> list[str]:
    return [block.text for block in blocks]


def test_halves_without_overlap_are_put_one_after_the_other() -> None:
    upper = [Block("text", "same words here now")]
    assert _texts(join(upper, upper, overlap=False)) == ["same words here now"] * 2


def test_a_block_that_both_have_whole_is_there_once() -> None:
    upper = [Block("text", "First."), Block("text", "The shared  paragraph.")]
    lower = [Block("text", "the shared paragraph."), Block("text", "Last.")]
    joined = join(upper, lower, overlap=True)
    assert _texts(joined) == ["First.", "The shared  paragraph.", "Last."]


def test_a_paragraph_across_the_cut_is_joined_without_loss() -> None:
    words = [f"word{n}" for n in range(100)]
    upper = [Block("text", " ".join(words[:60]) + " wor rd6l")]  # the last line is cut through
    lower = [Block("text", "vvord4g wo " + "\n".join(words[50:]))]
    joined = " ".join(_texts(join(upper, lower, overlap=True)))
    assert joined.split() == words


def test_a_table_across_the_cut() -> None:
    rows = [f"<tr><td>Item {n}</td><td>{n * 7} EUR</td></tr>" for n in range(40)]
    upper = [Block("table", "<table>" + " ".join(rows[:22]))]
    lower = [Block("table", " ".join(rows[18:]) + "</table>")]
    joined = " ".join(_texts(join(upper, lower, overlap=True)))
    assert all(joined.count(row) == 1 for row in rows)


def test_what_is_not_the_same_is_kept_whole() -> None:
    upper = [Block("text", "One thing and nothing else.")]
    lower = [Block("text", "Something quite different from it.")]
    assert _texts(join(upper, lower, overlap=True)) == [upper[0].text, lower[0].text]
    assert join([], lower, overlap=True) == tuple(lower)
    assert join(upper, [], overlap=True) == tuple(upper)


@settings(max_examples=200)
@given(st.data())
def test_nothing_is_lost_and_nothing_doubled(data: st.DataObject) -> None:
    """Distinct words, split anywhere with any overlap of at least a line."""
    total = data.draw(st.integers(30, 300))
    words = [f"w{n}" for n in range(total)]
    shared = data.draw(st.integers(5, min(25, total - 10)))
    start = data.draw(st.integers(1, total - shared - 1))
    joined = join(
        [Block(None, " ".join(words[: start + shared]))],
        [Block(None, " ".join(words[start:]))],
        overlap=True,
    )
    assert " ".join(_texts(joined)).split() == words
