"""A page in two halves: cut where nothing is written, and put together again.

The model loops or runs out of tokens on dense pages; half a page is half as dense. The cut goes
through a row without ink. Where there is none (a table with vertical rules, a photograph), the
halves overlap, and what both of them say is kept once.
"""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from PIL import Image

from deepseek_ocr_loaders.page import COORDINATE_MAX, Block, Box, Picture

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Half", "join", "on_page", "split"]

SEARCHED = (0.3, 0.7)
"""Shares of the height between which the cut is looked for, so that both parts stay halves."""
OVERLAP = 0.06
"""Share of the height by which halves overlap on each side of the middle: about three lines."""
INK_STEP = 40
"""Levels of grey from the paper's from which a pixel counts as ink."""
NOISE = 0.002
"""Share of a row that may be ink by noise of a scan."""
SMALLEST = 64
"""Pages lower than that many pixels are not cut."""

_WORD = re.compile(r"\S+")
_SEARCHED_WORDS = 200
_RAGGED_WORDS = 40
_SAME_WORDS = 4


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a page.

    Attributes:
        picture: As it is sent.
        top: Where it begins, in pixels of the page.
        overlaps: True where it shares rows with the other half.
    """

    picture: Picture
    top: int
    overlaps: bool


def split(picture: Picture) -> tuple[Half, Half] | None:
    """Give the upper and the lower half of a page; None where it is too low to cut."""
    if picture.height < SMALLEST:
        return None
    with Image.open(io.BytesIO(picture.data)) as opened:
        page = opened if opened.mode in {"L", "RGB"} else opened.convert("RGB")
        page.load()
    ink = _ink_by_row(page)
    cut = _widest_gap(ink)
    reach = 0
    if cut is None:
        cut = page.height // 2
        reach = round(OVERLAP * page.height)

    def part(top: int, bottom: int) -> Half:
        stream = io.BytesIO()
        page.crop((0, top, page.width, bottom)).save(stream, "PNG", compress_level=1)
        piece = Picture(
            stream.getvalue(),
            "image/png",
            page.width,
            bottom - top,
            picture.rotation,
            has_ink=any(share > NOISE for share in ink[top:bottom]),
        )
        return Half(piece, top, overlaps=reach > 0)

    return part(0, cut + reach), part(cut - reach, page.height)


def on_page(block: Block, top: int, height: int, page_height: int) -> Block:
    """Give a block of a half with boxes that refer to the whole page.

    Args:
        block: As the model placed it in the half.
        top: Where the half begins, in pixels of the page.
        height: Of the half, in pixels.
        page_height: Of the page, in pixels.
    """

    def y(value: int) -> int:
        pixel = top + value * height / COORDINATE_MAX
        return min(COORDINATE_MAX, max(0, round(pixel * COORDINATE_MAX / page_height)))

    return replace(
        block, boxes=tuple(Box(box.x1, y(box.y1), box.x2, y(box.y2)) for box in block.boxes)
    )


def join(upper: Sequence[Block], lower: Sequence[Block], *, overlap: bool) -> tuple[Block, ...]:
    """Put the blocks of two halves together, what both halves say once.

    Args:
        upper: Of the upper half.
        lower: Of the lower half.
        overlap: True where the halves share rows.
    """
    head, tail = list(upper), list(lower)
    if not overlap:
        return (*head, *tail)
    # A block in the shared rows that both have whole.
    said = {_plain(block.text): index for index, block in enumerate(head[-6:]) if block.text}
    while tail and tail[0].text and _plain(tail[0].text) in said:
        tail.pop(0)
    if head and tail:
        head[-1], tail[0] = _join_texts(head[-1], tail[0])
    return (*head, *(block for block in tail if block.text or block.label or block.boxes))


def _join_texts(above: Block, below: Block) -> tuple[Block, Block]:
    """Cut what two neighbours share out of the lower one.

    The last line of the upper and the first of the lower half may be cut through the letters:
    what stands beyond the shared words on either side is such a line, and the other half has it
    whole.
    """
    ours = list(_WORD.finditer(above.text))[-_SEARCHED_WORDS:]
    theirs = list(_WORD.finditer(below.text))[:_SEARCHED_WORDS]
    matcher = SequenceMatcher(
        None, [w.group() for w in ours], [w.group() for w in theirs], autojunk=False
    )
    same = matcher.find_longest_match()
    ragged = max(len(ours) - same.a - same.size, same.b)
    if same.size < _SAME_WORDS or ragged > _RAGGED_WORDS:
        return above, below
    kept = above.text[: ours[same.a + same.size - 1].end()]
    rest = below.text[theirs[same.b + same.size - 1].end() :]
    return replace(above, text=kept), replace(below, text=rest.lstrip())


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _ink_by_row(page: Image.Image) -> list[float]:
    """Give the share of each row that differs from the paper."""
    grey = page.convert("L")
    counts = grey.histogram()
    paper = max(range(256), key=counts.__getitem__)
    marks = grey.point([255 if abs(level - paper) >= INK_STEP else 0 for level in range(256)])
    rows = marks.convert("F").resize((1, grey.height), Image.Resampling.BOX)
    return [float(value) / 255 for value in struct.unpack(f"{grey.height}f", rows.tobytes())]


def _widest_gap(ink: Sequence[float]) -> int | None:
    """Give the middle of the widest gap between lines; among equals the one nearest the middle."""
    height = len(ink)
    first, last = (round(share * height) for share in SEARCHED)
    best: tuple[float, float] | None = None
    cut = None
    start = None
    for row in range(first, last + 1):
        if row < last and ink[row] <= NOISE:
            start = row if start is None else start
            continue
        if start is not None:
            middle = (start + row) // 2
            # Beyond a few lines' height a wider gap is no better than a nearer one.
            rank = (min(row - start, height * 0.03), -abs(middle - height / 2))
            if row - start >= 2 and (best is None or rank > best):
                best, cut = rank, middle
            start = None
    return cut
