"""Fault 16: giant pages and decompression bombs; and the sizes that the model looks at."""

from __future__ import annotations

import io
import logging
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.documents import A4, WORD, drawn, image_bytes, ink_box, ink_corner, opened, pdf_bytes
from support.fault_server import FaultServer, answer

from deepseek_ocr_loaders import DeepSeekOCRLoader
from deepseek_ocr_loaders.errors import RenderError
from deepseek_ocr_loaders.sizing import MAX_PIXELS, MIN_SIDE, grid, plan, tokens

FIRST, SECOND = "deepseek-ai/DeepSeek-OCR", "deepseek-ai/DeepSeek-OCR-2"


def bomb(width: int, height: int) -> bytes:
    """A PNG of 1-bit white whose data are missing: 140 bytes or less that promise gigabytes."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("width", "height", "model", "expected", "cost"),
    [
        (595, 842, FIRST, (1280, 1920), 903),
        (595, 842, SECOND, (1536, 2304), 1121),
        (842, 595, FIRST, (1920, 1280), 893),
        (842, 595, SECOND, (2304, 1536), 1121),
        (1600, 900, FIRST, (1280, 640), 483),
        (1600, 900, SECOND, (1536, 768), 545),
        (612, 792, FIRST, (1280, 1920), 903),
        (500, 500, FIRST, (1280, 1280), 693),
        (100, 600, FIRST, (640, 3840), 933),
    ],
)
def test_fault_16_page_is_drawn_at_the_grid_of_the_model(
    width: int, height: int, model: str, expected: tuple[int, int], cost: int
) -> None:
    found = plan(width, height, model=model)
    assert (found.width, found.height) == (found.canvas_width, found.canvas_height) == expected
    assert tokens(*expected, model=model) == cost


def test_fault_16_the_server_does_not_resize_what_is_sent() -> None:
    for ratio in (n / 50 for n in range(4, 500)):
        found = plan(1000 * ratio, 1000)
        columns, rows = grid(found.canvas_width, found.canvas_height)
        assert (found.canvas_width, found.canvas_height) == (columns * 640, rows * 640)


@pytest.mark.parametrize(("model", "side", "cost"), [(FIRST, 640, 273), (SECOND, 768, 257)])
def test_fault_16_low_detail_is_one_view(model: str, side: int, cost: int) -> None:
    image = drawn(pdf_bytes(), model=model, detail="low")
    assert image.height == side
    assert image.width == round(side * 595 / 842)
    assert tokens(*image.size, model=model) == cost
    assert ink_corner(image) == "top left"


def test_fault_16_dpi_is_kept() -> None:
    assert drawn(pdf_bytes(), dpi=144).size == (1190, 1684)


def test_fault_16_dpi_gives_way_to_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    image = drawn(pdf_bytes([("/MediaBox [0 0 3000 3000]", WORD)]), dpi=1200)
    assert 0.98 * MAX_PIXELS < image.width * image.height <= MAX_PIXELS + 10_000
    assert "as large as a page may be" in caplog.text


@given(
    width=st.floats(0.01, 1e7),
    height=st.floats(0.01, 1e7),
    dpi=st.none() | st.integers(36, 1200),
    detail=st.sampled_from(["high", "low"]),
    vector=st.booleans(),
    always_tiled=st.booleans(),
    model=st.sampled_from([FIRST, SECOND]),
)
def test_fault_16_every_page_has_a_size_within_bounds(**options: object) -> None:
    found = plan(**options)  # type: ignore[arg-type]
    assert 1 <= found.width <= found.canvas_width
    assert 1 <= found.height <= found.canvas_height
    assert min(found.canvas_width, found.canvas_height) >= MIN_SIDE
    if options["vector"] or options["detail"] == "low":
        limit = MAX_PIXELS if options["dpi"] else 6 * 768 * 768
        assert found.canvas_width * found.canvas_height <= 1.1 * limit + 20_000 * MIN_SIDE


@pytest.mark.parametrize(
    ("box", "size"),
    [
        ("/MediaBox [0 0 14400 14400]", (1280, 1280)),
        ("/MediaBox [0 0 100 14000]", (640, 3840)),
        ("/MediaBox [0 0 14000 100]", (3840, 640)),
        ("/MediaBox [0 0 595 842] /UserUnit 4", (1280, 1920)),
        ("/MediaBox [0 0 595 842] /UserUnit 75000", (1280, 1920)),
    ],
)
def test_fault_16_giant_pages_cost_what_any_page_costs(box: str, size: tuple[int, int]) -> None:
    with opened(pdf_bytes([(box, WORD)])) as document:
        picture = document.picture(0)
    assert (picture.width, picture.height) == size


def test_fault_16_user_unit_scales_the_page() -> None:
    assert drawn(pdf_bytes([(A4 + "/UserUnit 2", WORD)]), dpi=72).size == (1190, 1684)


@pytest.mark.parametrize("unit", ["0", "-2", "/x", "null"])
def test_fault_16_impossible_user_unit_counts_as_one(unit: str) -> None:
    image = drawn(pdf_bytes([(f"{A4} /UserUnit {unit}", WORD)]), dpi=72)
    assert image.size == (595, 842)
    assert ink_corner(image) == "top left"


@pytest.mark.parametrize("side", [20_000, 65_000, 2_000_000])
def test_fault_16_bomb_fails_as_a_page(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bomb(side, side)
    assert len(data) < 141
    with opened(data, name="bomb.png") as document, pytest.raises(RenderError) as caught:
        document.picture(0)
    assert "bomb.png, page 1" in str(caught.value)
    assert "pixels" in str(caught.value)


def test_fault_16_pillow_s_own_limit_is_neither_changed_nor_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with opened(image_bytes(Image.new("L", (300, 200), 7), "PNG")) as document:
        picture = document.picture(0)
    assert (picture.width, picture.height) == (300, 200)
    assert Image.MAX_IMAGE_PIXELS == 1000


def test_fault_16_large_picture_is_brought_to_the_grid() -> None:
    scan = Image.new("L", (2480, 3508), 255)
    scan.paste(0, (100, 100, 400, 200))
    image = drawn(image_bytes(scan, "PNG"))
    assert image.size == (1280, 1920)
    assert ink_box(image) == pytest.approx(
        (100 / 2480, 100 / 3508, 400 / 2480, 200 / 3508), abs=0.002
    )


@pytest.mark.parametrize("size", [(800, 1100), (640, 640), (64, 70), (639, 1200)])
def test_fault_16_picture_is_never_enlarged(size: tuple[int, int]) -> None:
    picture = Image.linear_gradient("L").resize(size)
    image = drawn(image_bytes(picture, "PNG"))
    assert image.size == size
    assert image.tobytes() == picture.tobytes()


@pytest.mark.parametrize("size", [(1, 1), (32, 32), (3000, 5), (5, 3000), (640, 2)])
def test_fault_16_picture_too_small_for_the_model_is_padded_with_white(
    size: tuple[int, int],
) -> None:
    image = drawn(image_bytes(Image.new("L", size, 0), "PNG"))
    assert min(image.size) >= MIN_SIDE
    assert 1 / 6.1 <= image.width / image.height <= 6.1
    assert image.getpixel((0, 0)) == 0
    assert image.getpixel((image.width - 1, image.height - 1)) == 255


@pytest.mark.parametrize("size", [(32, 32), (640, 640), (640, 100), (100, 640)])
@pytest.mark.parametrize("model", [FIRST, SECOND])
@pytest.mark.parametrize("detail", ["high", "low"])
def test_fault_32_small_picture_can_be_padded_to_two_tiles(
    size: tuple[int, int], model: str, detail: str
) -> None:
    with opened(image_bytes(Image.new("L", size, 0), "PNG"), detail=detail) as document:
        plain = document.picture(0, model=model)
        padded = document.picture(0, model=model, always_tiled=True)
    side = 768 if model == SECOND else 640
    assert max(plain.width, plain.height) <= side
    assert max(padded.width, padded.height) > side
    assert Image.open(io.BytesIO(padded.data)).getpixel((0, 0)) == 0


@pytest.mark.parametrize(
    ("version", "padded"), [("0.16.0", True), ("0.17.1rc0", True), ("0.18.0", False), (None, False)]
)
def test_fault_32_servers_that_die_of_small_pictures_get_padded_ones(
    version: str | None, padded: bool
) -> None:
    picture = image_bytes(Image.new("L", (400, 600), 0), "PNG")
    with FaultServer(lambda _: answer("Text"), version=version) as server:
        DeepSeekOCRLoader(picture, base_url=server.base_url, skip_blank=False).load()
        (request,) = server.requests
    sent = Image.open(io.BytesIO(request.pictures[0]))
    assert (max(sent.size) > 640) == padded
