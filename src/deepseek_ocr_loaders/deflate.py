"""zlib, with as few turns of the interpreter's lock as can be, so that a second core is used.

Whoever gives the lock away for a moment may find it with a thread in MuPDF, which holds it for all
of a page. `zlib.compress` gives it away for each block of its output, four times for a page of
text, and so do check sums and a small sample. The system's own library can be told when to keep
it: one turn for a page is enough (`docs/rendering.md` has what that gains).
"""

from __future__ import annotations

import ctypes
import sys
import zlib
from functools import cache
from typing import Any

__all__ = ["compress", "compressed_size", "crc32"]

_LIBRARY = {"linux": "libz.so.1", "darwin": "/usr/lib/libz.1.dylib"}
_LARGE = 1 << 18
"""Bytes below which one block of output is enough."""
_KEPT = 5 * 1024
"""Bytes up to which `zlib.crc32` keeps the interpreter's lock."""


def compress(data: bytearray, level: int) -> bytes:
    """Give the same as `zlib.compress`, without the interpreter's lock from end to end.

    Args:
        data: What is compressed; it is not changed.
        level: 0 to 9.
    """
    if len(data) >= _LARGE and (function := _compress2(keep_lock=False)) is not None:
        # A page of drawn text comes out at a fifteenth.
        found = _call(function, (ctypes.c_char * len(data)).from_buffer(data), level, 4)
        if found is not None:
            return found
    return zlib.compress(data, level)


def compressed_size(data: bytes, level: int) -> int:
    """Give the size of what `zlib.compress` gives; for small data, the lock is kept."""
    function = _compress2(keep_lock=True)
    found = _call(function, data, level, 1) if function is not None else None
    return len(zlib.compress(data, level) if found is None else found)


def crc32(data: bytes, start: int = 0) -> int:
    """Give the same as `zlib.crc32`, and keep the interpreter's lock."""
    view = memoryview(data)
    for at in range(0, len(data), _KEPT):
        start = zlib.crc32(view[at : at + _KEPT], start)
    return start


def _call(function: Any, data: Any, level: int, share: int) -> bytes | None:
    """Call it with room for a share of the data; None where that is too little."""
    room = len(data) // share + 1000
    out = ctypes.create_string_buffer(room)
    size = ctypes.c_ulong(room)
    if function(out, ctypes.byref(size), data, len(data), level) != 0:
        return None
    return ctypes.string_at(out, size.value)


@cache
def _compress2(*, keep_lock: bool) -> Any:
    """Give the function of the system's zlib; None where there is none."""
    try:
        name = _LIBRARY[sys.platform]
        function = (ctypes.PyDLL if keep_lock else ctypes.CDLL)(name).compress2
    except (KeyError, OSError, AttributeError):
        return None
    # int compress2(Bytef *dest, uLongf *destLen, const Bytef *source, uLong sourceLen, int level)
    function.argtypes = [
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_ulong),
        ctypes.c_char_p,
        ctypes.c_ulong,
        ctypes.c_int,
    ]
    function.restype = ctypes.c_int
    return function
