"""A picture as bytes, fast, without the lock of the drawing library.

What was drawn is sent losslessly as PNG; a photographed or scanned page, whose grain PNG can
hardly make smaller, as a JPEG (`docs/rendering.md` shows that it is read as well).

Filters cost more time than they save bytes on drawn text. A thread compresses a page without the
interpreter's lock while another draws the next.
"""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.deflate import compress, compressed_size, crc32

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["encode", "encode_png"]

_GRAIN = 0.3
"""A picture whose luminance deflates to more than this share is a photograph; drawn text stays
below 0.2, paper from a scanner comes out at 0.4 and more."""

_JPEG_QUALITY = 93
_SAMPLED_ROWS = 32
_HEADER = 1000
"""Bytes that a small picture is allowed beyond that: it is cheap either way."""


_CHANNELS = {"L": (1, 0), "RGB": (3, 2)}
"""Bytes a pixel, and PNG's colour type."""


def encode(image: Image.Image, pixels: bytes | None = None) -> tuple[bytes, str]:
    """Give an 8-bit grey or RGB picture as the bytes of a file, and their media type.

    Args:
        image: Mode `L` or `RGB`.
        pixels: Its bytes, row by row, where they are at hand.
    """
    if not _has_grain(image, pixels):
        return encode_png(image, pixels), "image/png"
    out = io.BytesIO()
    # Colour at full resolution: halved, it blurs coloured text.
    image.save(out, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
    return out.getvalue(), "image/jpeg"


def _has_grain(image: Image.Image, pixels: bytes | None) -> bool:
    step = max(1, image.height // _SAMPLED_ROWS)
    width, sampled = image.width, range(step // 2, image.height, step)
    if pixels is not None and image.mode == "L":
        rows = b"".join([pixels[y * width : (y + 1) * width] for y in sampled])
    else:
        rows = b"".join(image.crop((0, y, width, y + 1)).convert("L").tobytes() for y in sampled)
    return compressed_size(rows, 1) > _GRAIN * len(rows) + _HEADER


def encode_png(image: Image.Image, pixels: bytes | None = None) -> bytes:
    """Give an 8-bit grey or RGB picture as the bytes of a PNG file.

    Args:
        image: Mode `L` or `RGB`.
        pixels: Its bytes, row by row, where they are at hand.
    """
    if pixels is None:
        pixels = image.tobytes()
    channels, colour_type = _CHANNELS[image.mode]
    header = struct.pack(">IIBBBBB", image.width, image.height, 8, colour_type, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            *_chunk(b"IHDR", header),
            *_chunk(b"IDAT", _deflate(pixels, image.width * channels)),
            *_chunk(b"IEND", b""),
        )
    )


def _chunk(name: bytes, data: bytes) -> tuple[bytes, ...]:
    return (
        struct.pack(">I", len(data)),
        name,
        data,
        struct.pack(">I", crc32(data, crc32(name))),
    )


def _deflate(data: bytes, stride: int) -> bytes:
    """Compress the rows, each after a zero, which says that it is not filtered."""
    rows = bytearray(len(data) + len(data) // stride)
    source, target = memoryview(data), memoryview(rows)
    at = 1
    for start in range(0, len(data), stride):
        target[at : at + stride] = source[start : start + stride]
        at += stride + 1
    # A blank page takes a quarter of the bytes at the highest level, and no longer.
    blank = not data.lstrip(data[:1])
    return compress(rows, 9 if blank else 1)
