"""Fault 15: broken cross-references, truncation, and one bad page among good ones."""

from __future__ import annotations

import logging

import pytest
from support.documents import A4, WORD, drawn, ink_corner, opened, pdf_bytes

from deepseek_ocr_loaders.errors import CorruptSourceError, EmptySourceError, RenderError

THREE = pdf_bytes([(A4, WORD)] * 3)


@pytest.mark.parametrize(
    "data",
    [
        THREE.replace(b"startxref\n", b"startxref\n9"),
        THREE[:-60],
        b"x" * 500 + THREE,
        b"x" * 2000 + THREE,
        b"From: printer\r\n\r\n" * 2000 + THREE,
        THREE.replace(b"0000000000 65535 f", b"9999999999 65535 f"),
        THREE + b"\0" * 5000,
        THREE.replace(b"%PDF-1.7\n", b""),
        THREE.replace(b"trailer", b"trialer"),
    ],
    ids=["startxref", "cut", "500", "2000", "mail", "xref", "padded", "headless", "trailer"],
)
def test_fault_15_repairable_file_loads(data: bytes) -> None:
    with opened(data) as document:
        assert document.info.total_pages == 3
        assert [document.label(i) for i in range(3)] == ["1", "2", "3"]
    assert [ink_corner(drawn(data, i)) for i in range(3)] == ["top left"] * 3


@pytest.mark.parametrize("length", [9, 30, 60, 150])
def test_fault_15_nothing_left_to_repair_is_typed(length: int) -> None:
    with pytest.raises((CorruptSourceError, EmptySourceError), match=r"bad\.pdf"):
        opened(THREE[:length], name="bad.pdf")


@pytest.mark.parametrize(
    "data",
    [
        THREE.replace(b"\n5 0 obj", b"\n55 0 obj"),
        THREE.replace(b"\n5 0 obj\n<<", b"\n5 0 obj\n[]<<"),
        THREE.replace(b"[3 0 R 5 0 R 7 0 R]", b"[3 0 R 9 0 R 7 0 R]"),
        THREE.replace(b"[3 0 R 5 0 R 7 0 R]", b"[3 0 R null  7 0 R]"),
    ],
    ids=["renumbered", "array", "dangling", "null"],
)
def test_fault_15_one_bad_page_fails_alone(data: bytes) -> None:
    with opened(data, name="three.pdf") as document:
        assert document.info.total_pages == 3
        for index in (0, 2):
            assert document.picture(index).has_ink
        with pytest.raises(RenderError, match=r"three\.pdf, page 2 ") as caught:
            document.picture(1)
        assert caught.value.page_number == 2
        assert document.picture(2).has_ink  # the others can still be drawn after it


def test_fault_15_more_pages_promised_than_there_are() -> None:
    with opened(pdf_bytes([(A4, WORD)] * 2, count=4)) as document:
        outcomes = []
        for index in range(document.info.total_pages):
            try:
                outcomes.append(document.picture(index).has_ink)
            except RenderError as error:
                outcomes.append(error.page_number)
        assert outcomes == [True, True, 3, 4]


def test_fault_15_page_tree_that_contains_itself() -> None:
    data = pdf_bytes().replace(b"/Kids [3 0 R]", b"/Kids [2 0 R]")
    with opened(data) as document, pytest.raises(RenderError, match="page 1 "):
        document.picture(0)


def test_fault_15_content_that_was_cut_off_is_not_a_blank_page() -> None:
    cut = THREE[: THREE.index(b"\n6 0 obj") + 3]
    with opened(cut) as document:
        assert document.picture(0).has_ink
        with pytest.raises(RenderError, match=r"page 2 .*missing"):
            document.picture(1)


def test_fault_15_broken_picture_in_a_page_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    picture = (
        "<< /Type /XObject /Subtype /Image /Width 50 /Height 50 /ColorSpace /DeviceRGB "
        "/BitsPerComponent 8 /Filter /FlateDecode /Length 4 >>\nstream\nxxxx\nendstream"
    )
    data = pdf_bytes(
        [(A4, WORD + " q 200 0 0 200 100 100 cm /I Do Q")],
        extra=[picture],
        resources="/XObject << /I 5 0 R >> "
        "/Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>",
    )
    assert ink_corner(drawn(data)) == "top left"
    assert "page 1" in caplog.text


@pytest.mark.parametrize("index", [-1, 3, 1000])
def test_fault_15_page_that_does_not_exist(index: int) -> None:
    with opened(THREE) as document, pytest.raises(RenderError):
        document.picture(index)
