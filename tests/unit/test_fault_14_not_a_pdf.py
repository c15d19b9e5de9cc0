"""Fault 14: what is not what its name says; decided by content, refused with its true kind."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from support.documents import drawn, image_bytes, ink_corner, opened, pdf_bytes

from deepseek_ocr_loaders.errors import (
    CorruptSourceError,
    EmptySourceError,
    UnsupportedSourceError,
)
from deepseek_ocr_loaders.sniff import sniff

if TYPE_CHECKING:
    from pathlib import Path


def zipped(*names: str, first: tuple[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        if first:
            archive.writestr(zipfile.ZipInfo(first[0]), first[1])
        for name in names:
            archive.writestr(name, "x" * 5000)
    return out.getvalue()


OFFICE = {
    "docx": zipped("[Content_Types].xml", "_rels/.rels", "word/document.xml"),
    "xlsx": zipped("[Content_Types].xml", "xl/workbook.xml"),
    "pptx": zipped("[Content_Types].xml", "docProps/app.xml", "ppt/presentation.xml"),
    "odt": zipped("content.xml", first=("mimetype", "application/vnd.oasis.opendocument.text")),
    "ods": zipped("c.xml", first=("mimetype", "application/vnd.oasis.opendocument.spreadsheet")),
    "odp": zipped("c.xml", first=("mimetype", "application/vnd.oasis.opendocument.presentation")),
    "office-97": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600),
    "rtf": rb"{\rtf1\ansi Hello}",
}
OTHERS = {
    "html": b"<!doctype html><html><body>Not found</body></html>",
    "zip": zipped("a.txt"),
    "epub": zipped("x", first=("mimetype", "application/epub+zip")),
    "text": "Dear all,\nnothing to see – bye.\n".encode(),
    "xml": b"<?xml version='1.0'?><a/>",
    "svg": b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>",
    "postscript": b"%!PS-Adobe-3.0\n%%EOF",
    "gzip": b"\x1f\x8b\x08" + bytes(40),
    "heic": b"\0\0\0\x18ftypheic" + bytes(40),
    "unknown": bytes(range(1, 9)) * 40,
}


@pytest.mark.parametrize("kind", OFFICE)
@pytest.mark.parametrize("suffix", ["pdf", "png"])
def test_fault_14_office_file_says_what_to_convert_with(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    path = tmp_path / f"report.{suffix}"
    path.write_bytes(OFFICE[kind])
    with pytest.raises(UnsupportedSourceError, match=r"report\..*soffice --headless") as caught:
        opened(path)
    assert caught.value.kind == kind


@pytest.mark.parametrize("kind", OTHERS)
def test_fault_14_other_content_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "page.pdf"
    path.write_bytes(OTHERS[kind])
    with pytest.raises(UnsupportedSourceError, match=r"page\.pdf") as caught:
        opened(path)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "html",
    [
        b"  \n<HTML><head>",
        b"\xef\xbb\xbf<!DOCTYPE HTML PUBLIC>",
        b"<!-- saved from --><html>",
        b"<?xml version='1.0'?><!DOCTYPE html><html xmlns='x'>",
        b"<html><body>How to write %PDF-1.4 by hand: 1 0 obj</body>",
    ],
)
def test_fault_14_login_pages_are_html(html: bytes) -> None:
    assert sniff(html) == "html"


@pytest.mark.parametrize("name", ["empty.pdf", "empty.png", "empty"])
def test_fault_14_empty_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    with pytest.raises(EmptySourceError, match="0 bytes"):
        opened(path)


def test_fault_14_empty_bytes() -> None:
    with pytest.raises(EmptySourceError, match="0 bytes"):
        opened(b"")


def test_fault_14_pdf_without_pages() -> None:
    with pytest.raises(EmptySourceError, match="without pages") as caught:
        opened(pdf_bytes([]), name="none.pdf")
    assert "Success" not in str(caught.value)


@pytest.mark.parametrize("count", [-3, 10**9])
def test_fault_14_impossible_page_count_is_typed(count: int) -> None:
    with pytest.raises(CorruptSourceError, match="pages"):
        opened(pdf_bytes(count=count))


@pytest.mark.parametrize("name", ["scan.png", "scan.jpg", "scan.tiff", "scan.docx", "scan"])
def test_fault_14_pdf_under_another_name_is_a_pdf(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(pdf_bytes())
    with opened(path) as document:
        assert document.info.kind == "pdf"
    assert ink_corner(drawn(path)) == "top left"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "GIF", "WEBP", "BMP", "JPEG2000"])
def test_fault_14_picture_named_pdf_is_a_picture(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "scan.pdf"
    path.write_bytes(image_bytes(Image.new("RGB", (90, 70), "navy"), kind))
    with opened(path) as document:
        assert (document.info.kind, document.info.total_pages) == ("image", 1)
        assert document.picture(0).width == 90


@pytest.mark.parametrize(
    "data",
    [b"%PDF-1.7\n", b"%PDF-1.7\n" + bytes(range(256)) * 20, b"\x89PNG\r\n\x1a\n" + b"x" * 50,
     b"II*\0" + b"\xff" * 60, b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 ", b"\xff\xd8\xff\xe0"],
)  # fmt: skip
def test_fault_14_header_without_a_body_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptSourceError, match=r"odd\.bin"):
        opened(data, name="odd.bin")


def test_fault_14_web_page_that_mupdf_would_read_is_not_taken_for_a_pdf() -> None:
    # MuPDF recognises HTML by itself, whatever it is told.
    data = b"text %PDF-1.4 text\n<html><body>Hello</body></html>"
    with pytest.raises((CorruptSourceError, UnsupportedSourceError)):
        opened(data)
