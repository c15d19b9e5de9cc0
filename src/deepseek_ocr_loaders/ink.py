"""Whether anything is on a page: a page of one colour need not be sent.

The rule is conservative, because a model that is sent an empty page invents prose, but a page that
is not sent is lost: one small digit, speckle and show-through all count as ink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["INK_CONTRAST", "has_ink"]

INK_CONTRAST = 8
"""The least difference between two pixels, of 255 in any channel, that is ink: 3 % grey."""


def has_ink(image: Image.Image) -> bool:
    """Tell whether two pixels of a grey or RGB picture differ by `INK_CONTRAST` or more."""
    extrema = image.getextrema()
    bands = cast("tuple[tuple[int, int], ...]", (extrema,) if image.mode == "L" else extrema)
    return any(high - low >= INK_CONTRAST for low, high in bands)
