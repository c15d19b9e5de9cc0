"""Faults 24 and 25: every picture becomes 8-bit grey or RGB on white, upright, frame by frame."""

from __future__ import annotations

import io
import logging
import struct
import zlib
from typing import Any

import pytest
from PIL import Image, ImageFile, TiffImagePlugin
from PIL import __version__ as pillow_version
from support.documents import drawn, image_bytes, ink_box, ink_corner, opened

from deepseek_ocr_loaders.errors import CorruptSourceError, RenderError
from deepseek_ocr_loaders.picture import normalise

ORIENTATION = 0x0112
TURNS = {1: 0, 2: 0, 3: 180, 4: 180, 5: 270, 6: 90, 7: 90, 8: 270}
STORED_CORNER = {
    1: "top left", 2: "top right", 3: "bottom right", 4: "bottom left",
    5: "top left", 6: "bottom left", 7: "bottom right", 8: "top right",
}  # fmt: skip
"""Where the top left corner of the upright picture is stored (TIFF 6.0, Orientation)."""


def stored(orientation: int, size: tuple[int, int] = (300, 200)) -> Image.Image:
    """Give a picture whose upright form has its dark mark top left."""
    image = Image.new("RGB", size, "white")
    corner = STORED_CORNER[orientation]
    x = 0 if "left" in corner else size[0] - 60
    y = 0 if "top" in corner else size[1] - 40
    image.paste((0, 0, 90), (x, y, x + 60, y + 40))
    return image


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_fault_24_orientation_is_turned_once(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    options: dict[str, Any] = {"exif": exif}
    if kind == "TIFF":
        options = {"tiffinfo": {ORIENTATION: orientation}}
    data = image_bytes(stored(orientation), kind, **options)
    image = drawn(data)
    assert image.size == ((200, 300) if orientation >= 5 else (300, 200))
    assert ink_corner(image) == "top left"
    assert image.getexif().get(ORIENTATION) is None
    with opened(data) as document:
        assert document.picture(0).rotation == TURNS[orientation]
        again = document.picture(0)
        assert (again.width, again.height) == image.size


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_fault_24_photo_that_is_decoded_smaller(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image = drawn(image_bytes(stored(orientation, (4032, 3024)), "JPEG", exif=exif))
    assert image.size == ((1280, 1920) if orientation >= 5 else (1920, 1280))
    assert ink_corner(image) == "top left"


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_fault_24_impossible_orientation_is_none(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image = drawn(image_bytes(stored(1), "JPEG", exif=exif))
    assert (image.size, ink_corner(image)) == ((300, 200), "top left")


def test_fault_24_user_turns_beyond_the_exif() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = image_bytes(stored(6), "JPEG", exif=exif)
    with opened(data, rotate=90) as document:
        assert document.picture(0).rotation == 180
    assert ink_corner(drawn(data, rotate=90)) == "top right"


def frames(count: int, kind: str, mode: str = "1", **options: Any) -> bytes:
    """Give a picture whose frame i has a dark band at share i of its height."""
    images = []
    for i in range(count):
        image = Image.new("L", (200, 300), 255)
        image.paste(0, (0, 300 * i // count, 200, 300 * (i + 1) // count))
        images.append(image.convert(mode))
    out = io.BytesIO()
    images[0].save(out, kind, save_all=True, append_images=images[1:], **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("TIFF", "1", {"compression": "group4"}),
        ("TIFF", "L", {"compression": "tiff_lzw"}),
        ("TIFF", "RGB", {"compression": "jpeg"}),
        ("TIFF", "1", {}),
        ("GIF", "L", {"duration": 100}),
        ("WEBP", "RGB", {"duration": 100, "lossless": True}),
        ("PNG", "L", {"duration": 100}),
    ],
)
def test_fault_25_every_frame_is_a_page(kind: str, mode: str, options: dict[str, Any]) -> None:
    data = frames(3, kind, mode, **options)
    with opened(data) as document:
        assert document.info.total_pages == 3
        assert [document.label(i) for i in range(3)] == ["1", "2", "3"]
    for index in (2, 0, 1):  # in any order
        _, top, _, bottom = ink_box(drawn(data, index))
        assert (top, bottom) == pytest.approx((index / 3, (index + 1) / 3), abs=0.02)


def test_fault_25_reduced_copies_and_masks_are_no_pages() -> None:
    out = io.BytesIO()
    pages = []
    for size, subfile in [((400, 600), 0), ((40, 60), 1), ((400, 600), 2), ((400, 600), 4)]:
        page = Image.new("L", size, 255)
        page.paste(0, (0, 0, size[0] // 4, size[1] // 4))
        info = TiffImagePlugin.ImageFileDirectory_v2()
        info[254] = subfile
        page.encoderinfo = {"tiffinfo": info}
        pages.append(page)
    with TiffImagePlugin.AppendingTiffWriter(out, new=True) as writer:
        for page in pages:
            page.save(writer, "TIFF", tiffinfo=page.encoderinfo["tiffinfo"])
            writer.newFrame()
    with opened(out.getvalue()) as document:
        assert document.info.total_pages == 2
        assert [document.picture(i).width for i in range(2)] == [400, 400]


def test_fault_25_only_a_thumbnail_is_still_a_page() -> None:
    data = image_bytes(Image.new("L", (100, 100), 9), "TIFF", tiffinfo={254: 1})
    with opened(data) as document:
        assert document.info.total_pages == 1


def test_fault_25_previews_in_a_photo_are_no_pages() -> None:
    out = io.BytesIO()
    stored(1).save(out, "MPO", save_all=True, append_images=[stored(1)])
    with opened(out.getvalue()) as document:
        assert document.info.total_pages == 1
        assert document.picture(0).width == 300


def png16(values: list[list[int]], colour: int = 0) -> bytes:
    """Write a 16-bit PNG: grey (0), RGB (2), grey with alpha (4), RGBA (6)."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    rows = b"".join(b"\0" + struct.pack(f">{len(row)}H", *row) for row in values)
    header = struct.pack(">IIBBBBB", len(values[0]) // channels, len(values), 16, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )  # fmt: skip


def test_16_bit_grey_is_scaled_not_clipped() -> None:
    values = [[0, 257 * 50, 257 * 100, 257 * 200, 65535] * 20] * 100
    image = drawn(png16(values))
    assert image.mode == "L"
    assert [image.getpixel((x, 0)) for x in range(5)] == pytest.approx(
        [0, 50, 100, 200, 255], abs=1
    )


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I", "F"])
def test_other_deep_greys_are_scaled(mode: str) -> None:
    ramp = Image.linear_gradient("L")
    if mode == "F":
        image = ramp.convert("F").point(lambda v: v * (1 / 255) + 0)
    else:
        image = ramp.convert("I").point(lambda v: v * 257 + 0).convert(mode)
    result = drawn(image_bytes(image, "TIFF"))
    column = [result.getpixel((5, y)) for y in (0, 50, 100, 200, 255)]
    assert column == pytest.approx([0, 50, 100, 200, 255], abs=1)


def test_16_bit_rgb() -> None:
    image = drawn(png16([[65535, 0, 0] * 100] * 100, colour=2))
    assert image.getpixel((3, 3)) == (255, 0, 0)


@pytest.mark.parametrize(("colour", "pixel"), [(4, [0, 0]), (6, [0, 0, 0, 0])])
def test_16_bit_with_alpha_is_laid_on_white(colour: int, pixel: list[int]) -> None:
    assert drawn(png16([pixel * 100] * 100, colour=colour)).getpixel((3, 3)) == 255


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_alpha_is_laid_on_white(mode: str) -> None:
    image = Image.new("RGBA", (100, 100), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 50, 50))
    image.paste((0, 0, 0, 128), (50, 0, 100, 50))
    data = image_bytes(image.convert(mode), "PNG")
    result = drawn(data)
    assert result.mode == "L"
    assert result.getpixel((10, 10)) == 0
    assert result.getpixel((70, 10)) == pytest.approx(127, abs=1)
    assert result.getpixel((10, 70)) == 255


@pytest.mark.parametrize("mode", ["PA", "RGBa", "RGBX", "HSV"])
def test_modes_that_no_file_has_are_normalised_all_the_same(mode: str) -> None:
    grey = Image.new("L", (20, 20), 90)
    image = grey.convert("LA").convert("RGBA").convert(mode) if mode != "PA" else grey.convert("PA")
    assert normalise(image).getpixel((3, 3)) == pytest.approx(90, abs=2)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP"])
def test_palette_with_transparency_is_laid_on_white(kind: str) -> None:
    image = Image.new("P", (100, 100), 1)
    image.putpalette([0, 0, 0, 90, 90, 90] + [0, 0, 0] * 254)
    image.paste(0, (0, 0, 50, 50))
    if kind == "WEBP":
        image.info["transparency"] = 1
        data = image_bytes(image.convert("RGBA"), kind, lossless=True)
    else:
        data = image_bytes(image, kind, transparency=1)
    result = drawn(data)
    assert (result.getpixel((10, 10)), result.getpixel((70, 70))) == (0, 255)


def test_transparent_colour_of_grey_and_rgb() -> None:
    for mode, ink, clear in [("L", 0, 7), ("RGB", (0, 0, 0), (7, 7, 7))]:
        image = Image.new(mode, (100, 100), clear)
        image.paste(ink, (0, 0, 50, 50))
        result = drawn(image_bytes(image, "PNG", transparency=clear))
        assert (result.getpixel((10, 10)), result.getpixel((70, 70))) == (0, 255)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_keeps_its_tone(kind: str) -> None:
    image = Image.new("CMYK", (100, 100), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 50, 50))
    image.paste((0, 255, 255, 0), (50, 50, 100, 100))
    result = drawn(image_bytes(image, kind)).convert("RGB")
    assert max(result.getpixel((20, 20))) < 40
    assert min(result.getpixel((80, 20))) > 230
    red, green, blue = result.getpixel((80, 80))
    assert red > 200
    assert max(green, blue) < 60


def test_cmyk_jpeg_without_adobe_marker_is_not_inverted() -> None:
    image = Image.new("CMYK", (64, 64), (0, 0, 0, 0))
    data = image_bytes(image, "JPEG", quality=100)
    start = data.index(b"\xff\xee")
    size = struct.unpack(">H", data[start + 2 : start + 4])[0]
    bare = data[:start] + data[start + 2 + size :]
    # Without the marker the same samples mean the opposite: full ink.
    assert drawn(bare).convert("L").getpixel((5, 5)) < 40


@pytest.mark.parametrize("mode", ["1", "P", "L"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF"])
def test_bits_and_palettes_become_grey(mode: str, kind: str) -> None:
    image = Image.new("L", (101, 99), 255)
    image.paste(0, (0, 0, 50, 49))
    result = drawn(image_bytes(image.convert(mode), kind))
    assert (result.mode, result.size) == ("L", (101, 99))
    assert (result.getpixel((49, 48)), result.getpixel((50, 49))) == (0, 255)


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(
            "YCbCr",
            marks=pytest.mark.skipif(
                int(pillow_version.partition(".")[0]) < 13,
                reason="Pillow before 13 cannot read the YCbCr TIFF that it writes",
            ),
        ),
        "LAB",
    ],
)
def test_other_colour_spaces(mode: str) -> None:
    image = Image.new("RGB", (100, 100), (200, 30, 30))
    data = image_bytes(
        image.convert("YCbCr") if mode == "YCbCr" else Image.new("LAB", (100, 100), (90, 160, 150)),
        "TIFF",
    )
    assert drawn(data).mode == "RGB"


def test_colour_is_kept_and_grey_in_rgb_is_sent_as_grey() -> None:
    assert drawn(image_bytes(Image.new("RGB", (100, 100), (9, 9, 8)), "PNG")).mode == "RGB"
    assert drawn(image_bytes(Image.new("RGB", (100, 100), (9, 9, 9)), "PNG")).mode == "L"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000"])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_truncated_picture_is_an_error_never_half_a_page(kind: str, kept: float) -> None:
    data = image_bytes(Image.effect_noise((300, 400), 90).convert("RGB"), kind)
    cut = data[: int(len(data) * kept)]
    with (
        pytest.raises((CorruptSourceError, RenderError)) as caught,
        opened(cut, name="cut.x") as document,
    ):
        document.picture(0)
    assert "cut.x" in str(caught.value)


def test_truncated_picture_is_an_error_whatever_pillow_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = image_bytes(Image.effect_noise((300, 400), 90), "JPEG")
    with opened(data[: len(data) // 2]) as document, pytest.raises(RenderError, match="cut off"):
        document.picture(0)


def test_one_broken_frame_fails_alone() -> None:
    data = bytearray(frames(3, "TIFF", "L", compression="tiff_deflate"))
    with Image.open(io.BytesIO(bytes(data))) as image:
        image.seek(1)
        (offset,) = image.tag_v2[273]
    data[offset : offset + 20] = b"\xff" * 20
    with opened(bytes(data)) as document:
        assert document.picture(0).has_ink
        with pytest.raises(RenderError, match="page 2 "):
            document.picture(1)
        assert document.picture(2).has_ink


def test_pictures_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    drawn(image_bytes(stored(1), "JPEG"))
    assert not caplog.records
