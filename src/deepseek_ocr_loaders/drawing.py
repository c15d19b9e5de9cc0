"""What drawing a page gives, whichever library draws it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from deepseek_ocr_loaders.sizing import Plan

if TYPE_CHECKING:
    from PIL import Image

    from deepseek_ocr_loaders.page import Block

__all__ = ["Drawing", "PageFile", "Sizer", "on_canvas"]

Sizer = Callable[[float, float], Plan]
"""Gives the size to draw at for the width and height of an upright page."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn page.

    Attributes:
        image: Upright, mode `L` or `RGB`, on white.
        rotation: Degrees clockwise that it was turned.
        pixels: The bytes of `image`, row by row, where they are at hand: a copy costs 1 to 2 ms in
            which no other thread of Python runs.
    """

    image: Image.Image
    rotation: int
    pixels: bytes | None = None


class PageFile(Protocol):
    """An open document whose pages can be drawn, from several threads at once."""

    total_pages: int

    def draw(self, index: int, *, turn: int, size: Sizer) -> Drawing:
        """Draw one page, turned by `turn` degrees clockwise beyond what the file itself says.

        Raises:
            Exception: It cannot be drawn; the caller knows file and page, and names them.
        """

    def label(self, index: int) -> str:
        """Give the page's number as printed."""

    def text(self, index: int) -> str:
        """Give the text in the file itself, without looking at the page; empty for pictures."""

    def text_layer(self, index: int, *, turn: int) -> tuple[Block, ...] | None:
        """Give the blocks of the text in the file itself where it can be trusted.

        Their boxes are those of the page turned by `turn` degrees clockwise.
        """

    def close(self) -> None:
        """Close it; it may be called twice."""


def on_canvas(image: Image.Image, plan: Plan) -> Image.Image:
    """Lay a drawn page top left on the white canvas of its plan."""
    canvas = (plan.canvas_width, plan.canvas_height)
    if image.size == canvas:
        return image
    from PIL import Image as Pillow  # noqa: PLC0415 - importing the package loads no picture library

    sheet = Pillow.new(image.mode, canvas, "white")
    sheet.paste(image, (0, 0))
    return sheet
