from __future__ import annotations

import random
import sys
import zlib
from typing import TYPE_CHECKING

import pytest

from deepseek_ocr_loaders import deflate

if TYPE_CHECKING:
    from collections.abc import Iterator

RNG = random.Random(11)
DATA = {
    "empty": b"",
    "small": b"a page",
    "blank": bytes(1_000_000),
    "text": b"".join(RNG.choice([b"\xff" * 40, b"ink "]) for _ in range(60_000)),
    # Deflated it is larger than it was.
    "noise": RNG.randbytes(1_000_000),
}


@pytest.fixture(params=["library", "no library"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "no library":
        monkeypatch.setitem(deflate._LIBRARY, sys.platform, "libz-that-is-not-there.so")
    deflate._compress2.cache_clear()
    yield request.param
    deflate._compress2.cache_clear()


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("level", [1, 9])
def test_it_gives_what_zlib_gives(library: str, name: str, level: int) -> None:
    data = bytearray(DATA[name])
    assert zlib.decompress(deflate.compress(data, level)) == DATA[name]
    assert data == DATA[name]
    # Python may be built with another release of zlib than the system has.
    wanted = len(zlib.compress(DATA[name], level))
    assert deflate.compressed_size(DATA[name], level) == pytest.approx(wanted, rel=0.1)
    for start in (0, zlib.crc32(b"IDAT")):
        assert deflate.crc32(DATA[name], start) == zlib.crc32(DATA[name], start)


def test_the_library_of_the_system_is_used_where_there_is_one() -> None:
    deflate._compress2.cache_clear()
    assert (deflate._compress2(keep_lock=False) is not None) is (sys.platform != "win32")
