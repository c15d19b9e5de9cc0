"""Pictures and their frames, as 8-bit grey or RGB on white, upright, within a budget of pixels."""

from __future__ import annotations

import io
import math
import threading
from typing import TYPE_CHECKING, Any, cast

from PIL import Image, ImageChops, ImageFile, ImageOps

from deepseek_ocr_loaders.drawing import Drawing, on_canvas
from deepseek_ocr_loaders.errors import CorruptSourceError, SourceTooLargeError
from deepseek_ocr_loaders.properties import document_properties

if TYPE_CHECKING:
    from pathlib import Path

    from deepseek_ocr_loaders.drawing import Sizer

__all__ = ["MAX_DECODED_PIXELS", "PictureFile", "normalise"]

MAX_DECODED_PIXELS = 178_956_970
"""A picture with more is not decoded: twice what Pillow warns at, the number at which it refuses
by itself unless a program has changed its global setting. A0 at 300 dpi fits."""

_MOST_FRAMES = 10_000
_FORMATS = {
    "png": "PNG",
    "jpeg": "JPEG",
    "tiff": "TIFF",
    "webp": "WEBP",
    "bmp": "BMP",
    "gif": "GIF",
    "jpeg2000": "JPEG2000",
}
_TURNS = {3: 180, 4: 180, 5: 270, 6: 90, 7: 90, 8: 270}
"""Degrees clockwise that each EXIF orientation turns a picture; 2, 4, 5 and 7 mirror it too."""
_ORIENTATION = 0x0112
_SUBFILE = 254
_REDUCED_OR_MASK = 0b101
"""TIFF's NewSubfileType: a reduced copy of another page, or a mask for it; neither is a page."""


class _Strict:
    """A file in which reading at the end is an error while `strict` is set.

    Pillow completes a picture that is cut off with grey, silently, if any part of a program has
    set its global `LOAD_TRUNCATED_IMAGES`.
    """

    strict = False

    def read(self, size: int | None = -1, /) -> bytes:
        data: bytes = super().read(size)  # type: ignore[misc]
        if self.strict and not data and size:
            msg = "the picture is cut off: the file ends before it does"
            raise OSError(msg)
        return data


class _Bytes(_Strict, io.BytesIO):
    pass


class _File(_Strict, io.BufferedReader):
    pass


class PictureFile:
    """An open picture; each of its frames is a page.

    Args:
        data: Its bytes, or the path of the file.
        kind: As `sniff` gives it.
        source: What to call it in errors.

    Raises:
        CorruptSourceError: It cannot be opened as what it says it is.
        SourceTooLargeError: It has more frames than anyone would read.
    """

    def __init__(self, data: Path | bytes, *, kind: str, source: str) -> None:
        self._lock = threading.RLock()
        self._file: _Bytes | _File = (
            _Bytes(data) if isinstance(data, bytes) else _File(io.FileIO(data))
        )
        self.properties = document_properties(None)
        try:
            # The factory itself: `Image.open` would warn or raise by a global setting.
            Image.init()
            factory, _ = Image.OPEN[_FORMATS[kind]]
            self._image: Any = factory(self._file, "")
            self._frames = self._pages(source)
        except (CorruptSourceError, SourceTooLargeError):
            self._file.close()
            raise
        except Exception as error:  # noqa: BLE001 - each format of Pillow has its own
            self._file.close()
            msg = f"{source} starts like a {kind} picture but cannot be opened as one: {error}"
            raise CorruptSourceError(msg, source=source) from None
        self.total_pages = len(self._frames)

    def _pages(self, source: str) -> list[int]:
        # Other frames of a JPEG are previews and depth maps of the same shot.
        count = 1 if self._image.format in {"MPO", "JPEG"} else getattr(self._image, "n_frames", 1)
        if count > _MOST_FRAMES:
            msg = f"{source} has {count} frames; at most {_MOST_FRAMES} are read: split it"
            raise SourceTooLargeError(msg, source=source)
        if self._image.format != "TIFF":
            return list(range(count))
        pages = []
        for frame in range(count):
            self._image.seek(frame)
            if not int(self._image.tag_v2.get(_SUBFILE, 0)) & _REDUCED_OR_MASK:
                pages.append(frame)
        return pages or list(range(count))

    def label(self, index: int) -> str:
        """Give the number of the frame, counted from 1: a picture prints none."""
        return str(index + 1)

    def draw(self, index: int, *, turn: int, size: Sizer) -> Drawing:
        """Give one frame at the size that the plan wants; it is never enlarged."""
        with self._lock:
            if self._file.closed:
                msg = "the picture is closed"
                raise ValueError(msg)
            image, rotation = self._frame(index, size)
        image = normalise(image)
        if turn:
            # Pillow counts counter-clockwise.
            image = image.transpose(
                {
                    90: Image.Transpose.ROTATE_270,
                    180: Image.Transpose.ROTATE_180,
                    270: Image.Transpose.ROTATE_90,
                }[turn]
            )
        plan = size(*image.size)
        if image.size != (plan.width, plan.height):
            image = image.resize(
                (plan.width, plan.height), Image.Resampling.BICUBIC, reducing_gap=2.0
            )
        return Drawing(on_canvas(image, plan), (rotation + turn) % 360)

    def _frame(self, index: int, size: Sizer) -> tuple[Image.Image, int]:
        frame = self._image
        if self.total_pages > 1 or self._frames != [0]:
            frame.seek(self._frames[index])
        elif index:
            raise IndexError(index)
        width, height = frame.size
        if width * height > MAX_DECODED_PIXELS:
            msg = (
                f"it has {width} × {height} pixels, more than the {MAX_DECODED_PIXELS} that are "
                "decoded: scale it down first"
            )
            raise ValueError(msg)
        orientation = int(frame.getexif().get(_ORIENTATION, 1) or 1)
        if frame.format in {"JPEG", "MPO"}:
            plan = size(width, height)
            # JPEG decodes smaller in a fraction of the time; the larger side of either turn.
            side = max(plan.width, plan.height)
            frame.draft(None, (min(width, side), min(height, side)))
        # The decoder of JPEG 2000 itself asks for more than there is.
        self._file.strict = ImageFile.LOAD_TRUNCATED_IMAGES and frame.format != "JPEG2000"
        try:
            frame.load()
        finally:
            self._file.strict = False
        # A copy, because the next frame is decoded into the same picture.
        upright = ImageOps.exif_transpose(frame)
        if frame.format == "JPEG" and frame.mode == "CMYK" and "adobe" not in frame.info:
            # Pillow inverts as Adobe writes it; others write it the right way round.
            upright = ImageChops.invert(upright)
        return upright, _TURNS.get(orientation, 0)

    def text(self, index: int) -> str:
        """Give nothing: a picture has no text of its own."""
        del index
        return ""

    def text_layer(self, index: int, *, turn: int) -> None:
        """Give nothing: a picture has no text of its own."""
        del index, turn

    def close(self) -> None:
        """Close the file; it may be called twice."""
        with self._lock:
            if not self._file.closed:
                self._image.close()
                self._file.close()


def normalise(image: Image.Image) -> Image.Image:
    """Give any picture as 8-bit grey (`L`) or RGB, on white where it is transparent."""
    if image.mode.startswith("I") or image.mode == "F":
        return _scaled(image)
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        sheet = Image.new("RGBA", coloured.size, "white")
        image = Image.alpha_composite(sheet, coloured).convert("RGB")
    if image.mode in {"1", "L"}:
        return image.convert("L")
    image = image.convert("RGB")
    return image.convert("L") if _is_grey(image) else image


def _is_grey(image: Image.Image) -> bool:
    red, green, blue = image.split()
    return all(ImageChops.difference(red, other).getbbox() is None for other in (green, blue))


def _scaled(image: Image.Image) -> Image.Image:
    """Give 16-bit, 32-bit and floating-point grey in 8 bits."""
    values = image.convert("F") if image.mode != "F" else image
    low, high = cast("tuple[float, float]", values.getextrema())
    if not (math.isfinite(low) and math.isfinite(high)):
        msg = "it has pixels that are not numbers"
        raise ValueError(msg)
    if image.mode == "F" and high <= 1:
        full = 1.0
    elif image.mode == "F" and high <= 255:
        full = 255.0
    else:
        full = 65535.0 if high <= 65535 else high
    return values.point(lambda value: value * (255 / full) + 0.5).convert("L")
