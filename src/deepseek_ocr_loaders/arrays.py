"""Pictures as NumPy files, in which langchain-community hands them to an `images_parser`."""

from __future__ import annotations

import io
import re

from PIL import Image

from deepseek_ocr_loaders.errors import CorruptSourceError, UnsupportedSourceError

__all__ = ["is_array", "to_png"]

_MAGIC = b"\x93NUMPY"
# Bytes in the usual order, as height × width or height × width × channels. The header is Python's
# notation, which NumPy evaluates, and other kinds of arrays are pickles: neither is done here.
_HEADER = re.compile(
    rb"\{'descr': '\|u1', 'fortran_order': False, "
    rb"'shape': \((\d{1,7}), (\d{1,7})(?:, ([134]))?\), ?\} *\n"
)
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def is_array(data: bytes) -> bool:
    """Tell whether it is what `numpy.save` writes."""
    return data.startswith(_MAGIC)


def to_png(data: bytes, *, source: str) -> bytes:
    """Give a saved array as a PNG file.

    Args:
        data: Of 8 bits, height × width or height × width × channels: grey, RGB or RGBA.
        source: What to call it in errors.

    Raises:
        UnsupportedSourceError: An array of another kind.
        CorruptSourceError: It has more or fewer bytes than it says.
    """
    # Version 1 has two bytes for the length of the header, later ones four.
    start = 10 if data[6:7] == b"\x01" else 12
    header = _HEADER.fullmatch(data[start : start + int.from_bytes(data[8:start], "little")])
    if header is None:
        msg = (
            f"{source} is an array that is no picture: it must be of 8-bit numbers, height × "
            "width or height × width × 1, 3 or 4 channels"
        )
        raise UnsupportedSourceError(msg, source=source, kind="npy")
    height, width, channels = (int(number or 1) for number in header.groups())
    pixels = data[start + len(header.group()) :]
    if not pixels or len(pixels) != height * width * channels:
        msg = f"{source} is damaged: {len(pixels)} bytes for {width} × {height} pixels"
        raise CorruptSourceError(msg, source=source)
    out = io.BytesIO()
    image = Image.frombytes(_MODES[channels], (width, height), pixels)
    image.save(out, "PNG", compress_level=0)
    return out.getvalue()
