"""A picture as bytes, fast, without the lock of the drawing library.

What was drawn is sent losslessly as PNG; a photographed or scanned page, whose grain PNG can
hardly make smaller, as a JPEG (`docs/rendering.md` shows that it is read as well).

Filters cost more time than they save bytes on drawn text, and white rows need no compressor: they
are spliced in as ready-made pieces of the deflate stream. `zlib` works without the interpreter's
lock, so two threads encode two pages at once.
"""

from __future__ import annotations

import io
import struct
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["encode", "encode_png"]

_SHORTEST_RUN = 32
"""Fewer white rows than this are left to the compressor: a splice costs it what it has learnt, and
the thread its turn at the interpreter's lock."""

_GRAIN = 0.3
"""A picture whose luminance deflates to more than this share is a photograph; drawn text stays
below 0.2, paper from a scanner comes out at 0.4 and more."""

_JPEG_QUALITY = 93
_SAMPLED_ROWS = 32
_HEADER = 1000
"""Bytes that a small picture is allowed beyond that: it is cheap either way."""


_CHANNELS = {"L": (1, 0), "RGB": (3, 2)}
"""Bytes a pixel, and PNG's colour type."""


def encode(image: Image.Image) -> tuple[bytes, str]:
    """Give an 8-bit grey or RGB picture as the bytes of a file, and their media type.

    Args:
        image: Mode `L` or `RGB`.
    """
    if not _has_grain(image):
        return encode_png(image), "image/png"
    out = io.BytesIO()
    # Colour at full resolution: halved, it blurs coloured text.
    image.save(out, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
    return out.getvalue(), "image/jpeg"


def _has_grain(image: Image.Image) -> bool:
    step = max(1, image.height // _SAMPLED_ROWS)
    rows = b"".join(
        image.crop((0, y, image.width, y + 1)).convert("L").tobytes()
        for y in range(step // 2, image.height, step)
    )
    return len(zlib.compress(rows, 1)) > _GRAIN * len(rows) + _HEADER


def encode_png(image: Image.Image) -> bytes:
    """Give an 8-bit grey or RGB picture as the bytes of a PNG file.

    Args:
        image: Mode `L` or `RGB`.
    """
    channels, colour_type = _CHANNELS[image.mode]
    header = struct.pack(">IIBBBBB", image.width, image.height, 8, colour_type, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            *_chunk(b"IHDR", header),
            *_chunk(b"IDAT", _deflate(image.tobytes(), image.width * channels)),
            *_chunk(b"IEND", b""),
        )
    )


def _chunk(name: bytes, data: bytes) -> tuple[bytes, ...]:
    return (
        struct.pack(">I", len(data)),
        name,
        data,
        struct.pack(">I", zlib.crc32(data, zlib.crc32(name))),
    )


def _deflate(data: bytes, stride: int) -> bytes:
    white = b"\xff" * stride
    starts = range(0, len(data), stride)
    parts = [b"\x78\x01"]
    compressor = zlib.compressobj(1, zlib.DEFLATED, -15)
    check = 1
    for first, last, is_white in _runs([data.startswith(white, start) for start in starts]):
        if is_white:
            check = zlib.adler32((b"\0" + white) * (last - first), check)
            parts.append(_white_rows(last - first, stride))
            continue
        rows = b"\0" + b"\0".join([data[start : start + stride] for start in starts[first:last]])
        check = zlib.adler32(rows, check)
        parts.append(compressor.compress(rows))
        # What follows may not point back over the rows that are spliced in.
        parts.append(compressor.flush(zlib.Z_FULL_FLUSH))
    parts.append(compressor.flush())
    parts.append(struct.pack(">I", check))
    return b"".join(parts)


def _runs(white: list[bool]) -> list[tuple[int, int, bool]]:
    """Give (first row, row after the last, is it white) for all rows, in order."""
    runs: list[tuple[int, int, bool]] = []
    row = 0
    while row < len(white):
        try:
            end = white.index(not white[row], row)
        except ValueError:
            end = len(white)
        splice = white[row] and end - row >= _SHORTEST_RUN
        if runs and not splice and not runs[-1][2]:
            runs[-1] = (runs[-1][0], end, False)
        else:
            runs.append((row, end, splice))
        row = end
    return runs


@lru_cache(maxsize=512)
def _white_rows(count: int, stride: int) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress((b"\0" + b"\xff" * stride) * count) + compressor.flush(
        zlib.Z_FULL_FLUSH
    )
