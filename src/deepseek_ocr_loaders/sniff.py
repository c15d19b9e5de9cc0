"""What a file is, by its content: its suffix is never asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.errors import EmptySourceError, UnsupportedSourceError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HEAD_BYTES", "SUFFIXES", "is_image_kind", "require_readable", "sniff"]

HEAD_BYTES = 64 * 1024
"""How much of the start of a file `sniff` wants to see: mail gateways and printers put text in
front of a PDF, and readers go on looking for its header."""

SUFFIXES = frozenset(
    ("pdf", "png", "jpg", "jpeg", "jpe", "jfif", "tif", "tiff", "webp", "bmp", "dib", "gif", "jp2")
)
"""The suffixes, in lower case and without dot, that a folder is searched for."""

_IMAGES = frozenset({"png", "jpeg", "tiff", "webp", "bmp", "gif", "jpeg2000"})

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jpeg2000"),
    (b"\xff\x4f\xff\x51", "jpeg2000"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "office-97"),
    (b"{\\rtf", "rtf"),
    (b"8BPS", "psd"),
    (b"AT&TFORM", "djvu"),
    (b"\x1f\x8b", "gzip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\0\0\1\0", "ico"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "jpeg-xl"),
    (b"\xff\x0a", "jpeg-xl"),
    (b"\x7fELF", "program"),
    (b"MZ", "program"),
)

# The member by which each ZIP-based format is told; the first one whose name is there wins.
_ZIP_MEMBERS: tuple[tuple[bytes, str], ...] = (
    (b"mimetypeapplication/vnd.oasis.opendocument.text", "odt"),
    (b"mimetypeapplication/vnd.oasis.opendocument.spreadsheet", "ods"),
    (b"mimetypeapplication/vnd.oasis.opendocument.presentation", "odp"),
    (b"mimetypeapplication/vnd.oasis.opendocument.graphics", "odg"),
    (b"mimetypeapplication/epub+zip", "epub"),
    (b"word/", "docx"),
    (b"xl/", "xlsx"),
    (b"ppt/", "pptx"),
    (b"FixedDocSeq.fdseq", "xps"),
)

_BRANDS = {
    b"avif": "avif",
    b"avis": "avif",
    b"heic": "heic",
    b"heix": "heic",
    b"heif": "heic",
    b"mif1": "heic",
}

_OFFICE = {
    "docx": "a Word document",
    "xlsx": "an Excel workbook",
    "pptx": "a PowerPoint presentation",
    "odt": "an OpenDocument text",
    "ods": "an OpenDocument spreadsheet",
    "odp": "an OpenDocument presentation",
    "odg": "an OpenDocument drawing",
    "office-97": "an old Office file (doc, xls, ppt or msg)",
    "rtf": "a rich text file",
    "html": "a web page",
    "xml": "an XML file",
    "svg": "an SVG drawing",
    "text": "a text file",
}
_CONVERTERS = {
    "html": "print it to PDF from a browser, or load it with an HTML loader",
    "xml": "load it with a loader for XML",
    "svg": "convert it to PDF first, for example with rsvg-convert or Inkscape",
    "text": "it needs no OCR: load it with a text loader",
    "epub": "convert it to PDF first, for example with Calibre's ebook-convert",
    "xps": "convert it to PDF first, for example with mutool convert",
    "postscript": "convert it to PDF first with Ghostscript's ps2pdf",
    "djvu": "convert it to PDF first with DjVuLibre's ddjvu -format=pdf",
    "zip": "unpack it and load the files in it",
    "gzip": "unpack it and load the file in it",
    "7z": "unpack it and load the files in it",
    "rar": "unpack it and load the files in it",
    "heic": "save it as PNG or JPEG first, for example with heif-convert",
    "avif": "save it as PNG or JPEG first, for example with ImageMagick",
    "psd": "save it as PNG or TIFF first",
    "ico": "save it as PNG first",
    "jpeg-xl": "save it as PNG or JPEG first, for example with djxl",
}
_READABLE = "only PDF and PNG, JPEG, TIFF, WebP, BMP, GIF and JPEG 2000 pictures are read"

_PDF_HEADER = re.compile(rb"%PDF-\d|%!PS-Adobe-\d\.\d PDF-")
_PDF_OBJECT = re.compile(rb"(?:^|[\r\n])\s*\d{1,10} \d{1,5} obj\b")
_MARKUP = re.compile(rb"<(!doctype\s+(?:html|svg)|html|head|body|svg|\?xml|!--)")


def is_image_kind(kind: str) -> bool:
    """Tell whether `kind` is a picture that is read here."""
    return kind in _IMAGES


def sniff(head: bytes, tail: bytes = b"") -> str:
    """Give the kind of a file: `pdf`, a kind of picture, or a name for what is not read.

    Args:
        head: The first `HEAD_BYTES` bytes, or all where there are fewer.
        tail: The last bytes; a ZIP file keeps its list of members there.
    """
    if not head:
        return "empty"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return next((kind for member, kind in _ZIP_MEMBERS if member in head + tail), "zip")
    return _binary_kind(head) or _markup_kind(head) or _plain_kind(head)


def _binary_kind(head: bytes) -> str:
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    # Two letters could start a text; the four bytes after the size are always zero.
    if head.startswith(b"BM") and len(head) >= 26 and not head[6:10].strip(b"\0"):
        return "bmp"
    return _BRANDS.get(head[8:12].lower(), "video") if head[4:8] == b"ftyp" else ""


def _markup_kind(head: bytes) -> str:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:2048].lower()
    found = _MARKUP.match(start)
    if not found:
        return ""
    if b"<svg" in start and b"<html" not in start:
        return "svg"
    return "xml" if found.group(1) == b"?xml" and b"<html" not in start else "html"


def _plain_kind(head: bytes) -> str:
    # A PDF that lost its first bytes has no header, but can still be repaired.
    if _PDF_HEADER.search(head) or _PDF_OBJECT.search(head):
        return "pdf"
    if head.startswith(b"%!PS"):
        return "postscript"
    return "text" if _is_text(head) else "unknown"


def _is_text(head: bytes) -> bool:
    control = sum(head.count(bytes([code])) for code in range(32) if code not in (9, 10, 12, 13))
    if control:
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        # A character may be cut at the end of what was read.
        return error.start > len(head) - 4 and len(head) == HEAD_BYTES
    return True


def require_readable(kind: str, *, source: str) -> None:
    """Refuse a kind that is not read here, and say what to do with it.

    Raises:
        EmptySourceError: There are no bytes.
        UnsupportedSourceError: Anything but a PDF or a picture.
    """
    if kind == "pdf" or kind in _IMAGES:
        return
    if kind == "empty":
        msg = f"{source} is empty (0 bytes): was it written, uploaded or downloaded completely?"
        raise EmptySourceError(msg, source=source)
    what = _OFFICE.get(kind, "of an unknown kind" if kind == "unknown" else f"a {kind} file")
    advice = _CONVERTERS.get(kind)
    if advice is None and kind in _OFFICE:
        advice = (
            "convert it to PDF first, for example with LibreOffice: "
            "soffice --headless --convert-to pdf FILE"
        )
    msg = f"{source} is {what}, whatever its name says; {_READABLE}"
    if advice:
        msg += f": {advice}"
    raise UnsupportedSourceError(msg, source=source, kind=kind)


def has_known_suffix(name: str, suffixes: Iterable[str] = SUFFIXES) -> bool:
    """Tell whether a file name ends in a suffix that a folder is searched for."""
    return name.rpartition(".")[2].lower() in set(suffixes) and "." in name
