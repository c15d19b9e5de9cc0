"""Where on a nearly empty page to look again.

The model that finds lines judges a picture as a whole: one short line alone on a page (a chapter's
name, a page number) is not found at all, while the same line is found on a piece of the page around
it, or with two more lines on the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FEW_LINES", "unseen_regions"]

FEW_LINES = 3
"""With three lines on a page none was overlooked any more (11 and 14 pt, up to 39 lines)."""

_CONTRAST = 64
"""Difference from the paper, of 255, that is ink: less is what shines through or paper from a
scanner."""

_ROWS_APART = 24
"""Rows of paper that end a region."""

_COLUMNS_APART = 160
"""Columns of paper that do, in one row: words of a line are nearer to each other."""

_MARGIN = 80
"""Pixels of paper around a region; with 16 the words of a line were found apart. Large letters need
three times their height."""

_REGIONS_MAX = 8
"""With more ink than that in pieces it is a drawing."""

_LARGEST = 0.5
"""Share of the page above which a region shows the model nothing new."""


def unseen_regions(pixels: Any, quads: Iterable[Any]) -> list[tuple[int, int, int, int]]:
    """Give left, top, right and bottom of the regions with ink in which nothing was found.

    Args:
        pixels: The page, height × width × 3, 8 bits a channel.
        quads: The lines that were found, each 4 × 2: its corners in pixels.
    """
    height, width = pixels.shape[:2]
    light = pixels.mean(axis=2)
    ink = np.abs(light - np.median(light)) > _CONTRAST
    for quad in quads:
        # Strokes of large letters reach beyond the line that was found.
        (left, top), (right, bottom) = quad.min(axis=0), quad.max(axis=0)
        around = (bottom - top) / 2
        edges = np.array([top - around, bottom + around, left - around, right + around])
        above, below, before, after = np.rint(edges).astype(int).clip(0).tolist()
        ink[above : below + 1, before : after + 1] = False
    pieces = [
        (left, top, right, bottom)
        for top, bottom in _runs(ink.any(axis=1), apart=_ROWS_APART)
        for left, right in _runs(ink[top:bottom].any(axis=0), apart=_COLUMNS_APART)
    ]
    if len(pieces) > _REGIONS_MAX:
        return []
    regions = []
    for x1, y1, x2, y2 in pieces:
        margin = max(_MARGIN, 3 * (y2 - y1))
        left, right = max(0, x1 - margin), min(width, x2 + margin)
        top, bottom = max(0, y1 - margin), min(height, y2 + margin)
        if (right - left) * (bottom - top) <= _LARGEST * width * height:
            regions.append((left, top, right, bottom))
    return regions


def _runs(inked: Any, *, apart: int) -> list[tuple[int, int]]:
    """Give begin and end of the stretches of ink with less than `apart` paper in them."""
    places = np.flatnonzero(inked)
    if not places.size:
        return []
    ends = np.flatnonzero(np.diff(places) > apart)
    firsts, lasts = np.append(places[0], places[ends + 1]), np.append(places[ends], places[-1])
    return [(int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)]
