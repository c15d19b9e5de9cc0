"""How large a page is drawn: the size that the model looks at, decided before drawing.

DeepSeek-OCR cuts a picture into a grid of 2 to 6 tiles (640 pixels; 768 for DeepSeek-OCR-2), the
grid whose aspect ratio is nearest, and stretches the picture to it. A page that is drawn at
exactly that size is neither resampled by the server nor paid for twice.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["MAX_ASPECT", "MAX_PIXELS", "MIN_SIDE", "Plan", "grid", "plan", "tile_side", "tokens"]

MAX_PIXELS = 36_000_000
"""No page is drawn larger, whatever `dpi` says: A4 at 600 dpi fits."""

MIN_SIDE = 64
"""No picture is sent with a shorter side; white is added. Processors divide by 14 to 32."""

MAX_ASPECT = 6.0
"""The longest grid is 6 × 1; a longer page would be stretched beyond reading, so white is added."""

_GRIDS = tuple(
    (columns, rows) for columns in range(1, 7) for rows in range(1, 7) if 2 <= columns * rows <= 6
)
_SECOND = re.compile(r"ocr[-_ ]?2(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes in pixels: the page is drawn at the first and lies top left on a white canvas.

    Attributes:
        width: Of the drawn page.
        height: Of the drawn page.
        canvas_width: Of the picture that is sent; at least `width`.
        canvas_height: Of the picture that is sent; at least `height`.
        limited: True where the pixel budget made it smaller than what was asked for.
    """

    width: int
    height: int
    canvas_width: int
    canvas_height: int
    limited: bool = False


def tile_side(model: str) -> int:
    """Give the side of one tile of the crop grid in pixels: 768 for DeepSeek-OCR-2, else 640."""
    return 768 if _SECOND.search(model) else 640


def grid(width: float, height: float) -> tuple[int, int]:
    """Give the columns and rows of tiles that the model chooses for a picture of that shape."""
    ratio = width / height
    # Fewer tiles win a tie, as in the model's own code, which goes through them by number.
    return min(_GRIDS, key=lambda cells: (abs(ratio - cells[0] / cells[1]), cells[0] * cells[1]))


def tokens(width: int, height: int, *, model: str = "deepseek-ocr") -> int:
    """Give the prompt tokens that a picture of `width` × `height` pixels costs."""
    side = tile_side(model)
    second = side == 768
    if width <= side and height <= side:
        return 257 if second else 273
    columns, rows = grid(width, height)
    if second:
        return 257 + 144 * columns * rows
    return 273 + (10 * columns + 1) * 10 * rows


def plan(
    width: float,
    height: float,
    *,
    model: str = "deepseek-ocr",
    detail: Literal["high", "low"] = "high",
    dpi: int | None = None,
    vector: bool = True,
    always_tiled: bool = False,
) -> Plan:
    """Decide the size of a picture.

    Args:
        width: Of the upright page, in points where `vector`, else in pixels.
        height: Likewise.
        model: The model's id.
        detail: `low` sends one global view of at most one tile.
        dpi: Pixels per inch for a page in points; a picture then keeps its own pixels.
        vector: True for a page that can be drawn at any size; a picture is never enlarged.
        always_tiled: Pad a picture that fits into one tile to two, for the servers that die on
            it (vLLM 0.16 and 0.17, where #36670 is missing).
    """
    side = tile_side(model)
    # White that brings a strip into the range of the grids.
    full_width = max(width, height / MAX_ASPECT)
    full_height = max(height, width / MAX_ASPECT)
    if detail == "low":
        scale = side / max(width, height)
        scale_x = scale_y = scale if vector else min(1.0, scale)
        if vector and dpi is not None:
            scale_x = scale_y = min(scale, dpi / 72)
        full_width, full_height = width, height
    elif dpi is not None:
        scale_x = scale_y = dpi / 72 if vector else 1.0
    else:
        columns, rows = grid(full_width, full_height)
        if vector or full_width * full_height > columns * rows * side * side:
            scale_x = columns * side / full_width
            scale_y = rows * side / full_height
        else:
            scale_x = scale_y = 1.0
    asked = full_width * scale_x * full_height * scale_y
    limited = asked > MAX_PIXELS
    if limited:
        shrink = math.sqrt(MAX_PIXELS / asked)
        scale_x, scale_y = scale_x * shrink, scale_y * shrink
    draw_width, draw_height = max(1, round(width * scale_x)), max(1, round(height * scale_y))
    canvas_width = max(draw_width, MIN_SIDE, round(full_width * scale_x))
    canvas_height = max(draw_height, MIN_SIDE, round(full_height * scale_y))
    if always_tiled and canvas_width <= side and canvas_height <= side:
        # To the side, so that the halves of it are too wide for one tile as well.
        canvas_width, canvas_height = 2 * side, side
    return Plan(draw_width, draw_height, canvas_width, canvas_height, limited)
