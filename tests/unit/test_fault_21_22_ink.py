"""Faults 21 and 22: pages without ink, and text that cannot be seen."""

from __future__ import annotations

import io
import logging
import random

import pytest
from PIL import Image, ImageDraw
from support.documents import A4, WORD, image_bytes, opened, pdf_bytes

DIGIT = "BT /F 8 Tf 297 20 Td (7) Tj ET"
INVISIBLE = "BT 3 Tr /F 12 Tf 50 700 Td (What another engine read on this page) Tj ET"


def speckle(share: float, value: int = 0) -> Image.Image:
    rng = random.Random(22)
    image = Image.new("L", (620, 877), 255)
    for _ in range(int(share * 620 * 877)):
        image.putpixel((rng.randrange(620), rng.randrange(877)), value)
    return image


def show_through() -> Image.Image:
    image = Image.new("L", (620, 877), 255)
    ImageDraw.Draw(image).text((50, 50), "printed on the other side", fill=230)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


@pytest.mark.parametrize("detail", ["high", "low"])
@pytest.mark.parametrize(
    ("content", "inked"),
    [
        (WORD, True),
        (DIGIT, True),
        ("", False),
        ("1 g 0 0 595 842 re f", False),
        ("0.9 g 0 0 595 842 re f", False),
        ("0.9 1 0.9 rg 0 0 595 842 re f", False),
        (f"1 g {WORD}", False),
        (f"0.9 g {WORD}", True),
        ("0.5 w 50 50 m 300 50 l S", True),
        ("1 0 0 rg 300 300 2 2 re f", True),
    ],
)
def test_fault_22_page_of_a_pdf(content: str, detail: str, *, inked: bool) -> None:
    with opened(pdf_bytes([(A4, content)]), detail=detail) as document:
        assert document.picture(0).has_ink is inked


@pytest.mark.parametrize("box", ["[0 0 1191 1684]", "[0 0 2384 3370]"])
def test_fault_22_digit_on_a_poster(box: str) -> None:
    with opened(pdf_bytes([(f"/MediaBox {box}", DIGIT)])) as document:
        assert document.picture(0).has_ink


@pytest.mark.parametrize(
    ("image", "inked"),
    [
        (Image.new("1", (620, 877), 1), False),
        (Image.new("RGB", (620, 877), "white"), False),
        (Image.new("RGB", (620, 877), (250, 246, 230)), False),
        (Image.new("RGBA", (620, 877), (0, 0, 0, 0)), False),
        (speckle(0.01), True),
        (speckle(0.5, 250), False),
        (speckle(0.00001), True),
        (show_through(), True),
    ],
    ids=["1-bit", "white", "paper", "transparent", "speckle", "grain", "dust", "show-through"],
)
def test_fault_22_picture(image: Image.Image, *, inked: bool) -> None:
    with opened(image_bytes(image, "PNG")) as document:
        assert document.picture(0).has_ink is inked


def test_fault_22_two_colours_of_the_same_grey_are_ink() -> None:
    image = Image.new("RGB", (620, 877), (255, 0, 0))
    image.paste((0, 130, 0), (100, 100, 200, 120))
    low, high = image.convert("L").getextrema()
    assert high - low < 8
    with opened(image_bytes(image, "PNG")) as document:
        assert document.picture(0).has_ink


def test_fault_22_blank_page_keeps_its_picture() -> None:
    with opened(pdf_bytes([(A4, "")])) as document:
        picture = document.picture(0)
    assert Image.open(io.BytesIO(picture.data)).getextrema() == (255, 255)
    assert (picture.width, picture.height) == (1280, 1920)


def test_fault_22_has_ink_does_not_depend_on_skip_blank() -> None:
    with opened(pdf_bytes([(A4, "")]), skip_blank=False) as document:
        assert not document.picture(0).has_ink


@pytest.mark.parametrize("content", [INVISIBLE, f"1 g {WORD}"])
def test_fault_21_text_that_cannot_be_seen_warns_once(
    content: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with opened(pdf_bytes([(A4, WORD), (A4, content)]), name="cjk.pdf") as document:
        for _ in range(3):
            assert not document.picture(1).has_ink
        assert document.picture(0).has_ink
    assert len(caplog.records) == 1
    assert "cjk.pdf, page 2 has text but nothing of it can be seen" in caplog.text
    assert "fonts" in caplog.text


def test_fault_21_blank_page_without_text_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with opened(pdf_bytes([(A4, "")])) as document:
        document.picture(0)
    assert not caplog.records


def test_fault_21_cjk_font_that_is_not_embedded_is_drawn_or_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    font = (
        "/Font << /F << /Type /Font /Subtype /Type0 /BaseFont /Ryumin-Light /Encoding /Identity-H "
        "/DescendantFonts [<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Ryumin-Light "
        "/CIDSystemInfo << /Registry (Adobe) /Ordering (Japan1) /Supplement 6 >> "
        "/FontDescriptor << /Type /FontDescriptor /FontName /Ryumin-Light /Flags 4 >> >>] >> >>"
    )
    content = "BT /F 40 Tf 50 700 Td <034B034C034D> Tj ET"
    with opened(pdf_bytes([(A4, content)], resources=font)) as document:
        inked = document.picture(0).has_ink
    assert inked or "nothing of it can be seen" in caplog.text
