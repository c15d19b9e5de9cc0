"""The PNG encoder: lossless, whatever is on the page, and read by any decoder."""

from __future__ import annotations

import io
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from deepseek_ocr_loaders.encode import encode, encode_png


def decoded(image: Image.Image) -> Image.Image:
    data = encode_png(image)
    with Image.open(io.BytesIO(data)) as check:
        check.verify()
    result = Image.open(io.BytesIO(data))
    result.load()
    return result


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (1280, 1920), (641, 333)])
@pytest.mark.parametrize("content", ["white", "black", "noise", "rows", "columns"])
def test_encoding_is_lossless(mode: str, size: tuple[int, int], content: str) -> None:
    image = Image.new(mode, size, "white")
    if content == "black":
        image = Image.new(mode, size, 0)
    elif content == "noise":
        image = Image.effect_noise(size, 60).convert(mode)
    elif content == "rows":
        for y in range(0, size[1], 23):
            image.paste(0, (0, y, size[0], y + 7))
    elif content == "columns":
        for x in range(0, size[0], 23):
            image.paste(0, (x, 0, x + 7, size[1]))
    result = decoded(image)
    assert (result.mode, result.size) == (mode, size)
    assert result.tobytes() == image.tobytes()


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 70), st.sampled_from([255, 254, 0, -1])), min_size=1, max_size=12
    ),
    width=st.integers(1, 200),
    mode=st.sampled_from(["L", "RGB"]),
)
def test_any_sequence_of_white_and_other_rows(
    rows: list[tuple[int, int]], width: int, mode: str
) -> None:
    rng = random.Random(width)
    stride = width * len(mode)
    data = b"".join(
        (rng.randbytes(stride) if value < 0 else bytes([value]) * stride) * count
        for count, value in rows
    )
    image = Image.frombytes(mode, (width, len(data) // stride), data)
    assert decoded(image).tobytes() == data


def test_the_stream_is_one_that_strict_decoders_take() -> None:
    image = Image.new("L", (900, 700), 255)
    image.paste(0, (10, 300, 500, 340))
    data = encode_png(image)
    start = data.index(b"IDAT")
    size = int.from_bytes(data[start - 4 : start])
    decoder = zlib.decompressobj()
    rows = decoder.decompress(data[start + 4 : start + 4 + size])
    assert decoder.eof  # the checksum is right
    assert not decoder.unused_data
    assert len(rows) == 700 * 901


def test_a_blank_page_is_small() -> None:
    assert len(encode_png(Image.new("RGB", (1280, 1920), "white"))) < 20_000


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_grain_of_a_scan_is_sent_as_jpeg_and_what_was_drawn_as_png(mode: str) -> None:
    grain = Image.effect_noise((1280, 1920), 12).convert(mode)
    data, media_type = encode(grain)
    assert media_type == "image/jpeg"
    result = Image.open(io.BytesIO(data))
    assert (result.format, result.mode, result.size) == ("JPEG", mode, (1280, 1920))
    drawn = Image.new(mode, (1280, 1920), "white")
    for y in range(0, 1900, 20):
        for x in range(0, 1270, 9):
            drawn.paste(x % 256 if mode == "L" else (x % 256, 0, 9), (x, y, x + 5, y + 12))
    data, media_type = encode(drawn)
    assert media_type == "image/png"
    assert Image.open(io.BytesIO(data)).tobytes() == drawn.tobytes()


def test_small_pictures_stay_lossless() -> None:
    assert encode(Image.effect_noise((30, 30), 90))[1] == "image/png"
