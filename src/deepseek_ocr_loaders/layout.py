"""The value of `layout`: the blocks of a Document with their boxes and their places in its text.

It is one JSON string, a list with an entry for each block:

- `label`: the model's word; missing for text outside tags
- `boxes`: left, top, right, bottom, from 0 to 999 on each axis of the page's picture
- `pixels`: the same in pixels of a picture of `width` × `height`
- `start`, `end`: its text within the Document's; missing where it has none there
- `probe`: every eighth character of that text, at offsets divisible by 8. A splitter gives its
  chunks no offset by default; with the probes the place of a chunk is found again.
- `page`: counted from 0, where the Document has several pages
- `flags`, `image`: see `page.Block`; missing where empty
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deepseek_ocr_loaders.page import Block, PageResult

__all__ = ["PROBE_STEP", "Placed", "compact", "find", "join", "to_json"]

PROBE_STEP = 8
BLOCK_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class Placed:
    """A block and where its text is; start and end are the same where it has none."""

    block: Block
    start: int
    end: int
    width: int
    height: int
    page: int | None = None

    def moved(self, by: int, *, page: int) -> Placed:
        """Give the same block in a text in which its page starts later."""
        return replace(self, start=self.start + by, end=self.end + by, page=page)


def join(
    page: PageResult, indexes: Iterable[int], texts: Sequence[str]
) -> tuple[str, list[Placed]]:
    """Join the texts of some blocks of a page, with a blank line between, and place the blocks."""
    pieces: list[str] = []
    placed: list[Placed] = []
    at = 0
    for index, text in zip(indexes, texts, strict=True):
        if text and at:
            pieces.append(BLOCK_SEPARATOR)
            at += len(BLOCK_SEPARATOR)
        pieces.append(text)
        placed.append(Placed(page.blocks[index], at, at + len(text), page.width, page.height))
        at += len(text)
    return "".join(pieces), placed


def find(page: PageResult, text: str) -> list[Placed]:
    """Place the blocks of a page in the raw answer that they were read from."""
    placed: list[Placed] = []
    at = 0
    for block in page.blocks:
        start = text.find(block.text, at) if block.text else -1
        end = start + len(block.text) if start >= 0 else at
        placed.append(Placed(block, start if start >= 0 else at, end, page.width, page.height))
        at = end
    return placed


def to_json(placed: Sequence[Placed], text: str) -> str:
    """Write the blocks as the value of `layout`.

    Args:
        placed: The blocks of a Document, in order.
        text: Its text.
    """
    return compact([_entry(block, text) for block in placed])


def compact(value: Any) -> str:
    """Write JSON without blanks, in ASCII, so that every store keeps it as it is."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _entry(placed: Placed, text: str) -> dict[str, Any]:
    block = placed.block
    entry: dict[str, Any] = {}
    if placed.page is not None:
        entry["page"] = placed.page
    if block.label is not None:
        entry["label"] = block.label
    entry["boxes"] = [[box.x1, box.y1, box.x2, box.y2] for box in block.boxes]
    if block.boxes and placed.width and placed.height:
        entry["pixels"] = [box.pixels(placed.width, placed.height) for box in block.boxes]
    if placed.end > placed.start:
        first = -(-placed.start // PROBE_STEP) * PROBE_STEP
        entry |= {"start": placed.start, "end": placed.end}
        entry["probe"] = text[first : placed.end : PROBE_STEP]
    if block.flags:
        entry["flags"] = list(block.flags)
    if block.image is not None:
        entry["image"] = block.image
    return entry
