"""Pages of a PDF, drawn with MuPDF.

MuPDF is not safe for threads: every call to it, opening and closing included, is made under one
lock of the process, and the lock is never held while anything else is done.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pymupdf
from PIL import Image, ImageChops

from deepseek_ocr_loaders.drawing import Drawing, on_canvas
from deepseek_ocr_loaders.errors import (
    CorruptSourceError,
    EmptySourceError,
    PasswordRequiredError,
    WrongPasswordError,
)
from deepseek_ocr_loaders.labels import page_label
from deepseek_ocr_loaders.properties import document_properties
from deepseek_ocr_loaders.text_layer import read_text_layer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import SecretStr

    from deepseek_ocr_loaders.drawing import Sizer
    from deepseek_ocr_loaders.page import Block

__all__ = ["PdfFile", "explain", "mupdf"]

logger = logging.getLogger(__name__)

_mupdf: Any = pymupdf  # it has no types

# Re-entrant, because the garbage collector may close one document during a call for another.
_LOCK = threading.RLock()

_KEEP_FOR = 16
"""Pages for which MuPDF may keep fonts; it would keep 256 MB of all that it has seen."""

_THUMBNAIL = 8
"""Colour is looked for on a picture so many times smaller, which costs a tenth of a full one."""

_LAYER_PIXELS = 800
"""The longer side of the picture on which ink outside of the text layer is looked for."""

_TINT = 12
"""The least difference between two channels, of 255, that is colour: prints of pure black ink
come out at up to 4 apart."""

_LETTER = {(612, 792), (792, 612)}
"""What MuPDF takes where a page has no usable box."""

_CODE = re.compile(r"^(?:code=-?\d+:\s*)+")
_LOSS = re.compile(
    r"premature|truncat|cannot (?:draw|load|find|decode)|ignoring (?:error|image)|"
    r"unsupported|corrupt|bad (?:image|data)",
    re.IGNORECASE,
)


def _forget_lock() -> None:
    global _LOCK  # noqa: PLW0603 - a forked child starts with a lock that no thread of it holds
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


@contextmanager
def mupdf() -> Iterator[None]:
    """Hold the lock for calls to MuPDF, which prints nothing meanwhile."""
    with _LOCK:
        errors = _mupdf.TOOLS.mupdf_display_errors()
        warnings = _mupdf.TOOLS.mupdf_display_warnings()
        _mupdf.TOOLS.mupdf_display_errors(on=False)
        _mupdf.TOOLS.mupdf_display_warnings(on=False)
        try:
            yield
        finally:
            _mupdf.TOOLS.mupdf_display_errors(on=errors)
            _mupdf.TOOLS.mupdf_display_warnings(on=warnings)


def explain(error: Exception) -> str:
    """Give MuPDF's message without its numbers."""
    return _CODE.sub("", str(error)).strip() or type(error).__name__


class PdfFile:
    """An open PDF.

    Args:
        data: Its bytes, or the path of the file, which is then not read into memory.
        source: What to call it in errors.
        password: For one that is encrypted; not looked at where it is not needed.

    Raises:
        PasswordRequiredError: It is encrypted and no password was given.
        WrongPasswordError: It does not open with that password.
        EmptySourceError: It has no pages.
        CorruptSourceError: It cannot be opened or repaired.
    """

    def __init__(self, data: Path | bytes, *, source: str, password: SecretStr | None) -> None:
        self._source = source
        with mupdf():
            self._document: Any = _open(data, source)
            try:
                self._unlock(password)
                self.total_pages = self._count()
                self.properties = document_properties(self._document.metadata)
                self._labels = self._label_rules()
            except BaseException:
                self._document.close()
                raise

    def _unlock(self, password: SecretStr | None) -> None:
        if not self._document.needs_pass:
            return
        if password is None:
            msg = f"{self._source} is encrypted and opens only with a password: pass password="
            raise PasswordRequiredError(msg, source=self._source)
        if not self._document.authenticate(password.get_secret_value()):
            msg = f"{self._source} does not open with the password that was given"
            raise WrongPasswordError(msg, source=self._source)

    def _count(self) -> int:
        try:
            count = int(self._document.page_count)
        except Exception as error:  # noqa: BLE001 - MuPDF raises many kinds
            msg = f"{self._source} is a PDF whose list of pages cannot be read: {explain(error)}"
            raise CorruptSourceError(msg, source=self._source) from None
        if count > self._document.xref_length():
            msg = f"{self._source} is a PDF whose list of pages is wrong: {count} pages in all"
            raise CorruptSourceError(msg, source=self._source)
        if count == 0:
            damaged = ": it is damaged" if self._document.is_repaired else ""
            msg = f"{self._source} is a PDF without pages{damaged}"
            raise EmptySourceError(msg, source=self._source)
        return count

    def _label_rules(self) -> list[dict[str, Any]]:
        try:
            return list(self._document.get_page_labels())
        except Exception as error:  # noqa: BLE001 - broken labels cost the labels, not the document
            logger.info("%s: its page labels cannot be read: %s", self._source, explain(error))
            return []

    def label(self, index: int) -> str:
        """Give the label of a page, or its number from 1 where the document prints none."""
        return page_label(self._labels, index)

    def draw(self, index: int, *, turn: int, size: Sizer) -> Drawing:
        """Draw one page as a viewer shows it: crop box, rotation, annotations and forms."""
        with mupdf():
            _mupdf.TOOLS.reset_mupdf_warnings()
            page = self._page(index)
            rotation = (page.rotation + turn) % 360
            rect = page.rect
            width, height = rect.width, rect.height
            if turn % 180:
                width, height = height, width
            plan = size(width, height)
            matrix = _mupdf.Matrix(1, 1).prerotate(turn)
            turned = rect * matrix
            matrix *= _mupdf.Matrix(1, 0, 0, 1, -turned.x0, -turned.y0)
            matrix *= _mupdf.Matrix(plan.width / width, plan.height / height)
            has_images = bool(page.get_images())
            image, pixels = _rasterise(page, matrix, has_images=has_images)
            warnings = _mupdf.TOOLS.mupdf_warnings()
            del page
            _bound_cache(index, has_images=has_images)
        if plan.limited:
            logger.warning(
                "%s, page %d: drawn at %d × %d pixels, as large as a page may be",
                self._source, index + 1, plan.width, plan.height,
            )  # fmt: skip
        if _LOSS.search(warnings):
            logger.warning(
                "%s, page %d: something on it may be missing: %s",
                self._source, index + 1, " | ".join(dict.fromkeys(warnings.splitlines()))[:300],
            )  # fmt: skip
        if image.size != (plan.width, plan.height):
            # A rounding error of MuPDF is one row or column.
            image = image.crop((0, 0, plan.width, plan.height))
            pixels = None
        sheet = on_canvas(image, plan)
        return Drawing(sheet, rotation, pixels if sheet is image else None)

    def text(self, index: int) -> str:
        """Give the text of a page as it is in the file."""
        with mupdf():
            return str(self._page(index).get_text("text"))

    def text_layer(self, index: int, *, turn: int) -> tuple[Block, ...] | None:
        """Give the blocks of the page's own text where it can be trusted, else None."""
        with mupdf():
            page = self._page(index)
            scale = _LAYER_PIXELS / max(page.rect.width, page.rect.height, 1)
            matrix = _mupdf.Matrix(scale, scale)
            thumbnail, _ = _image(page.get_pixmap(matrix=matrix, colorspace=_mupdf.csGRAY))
            return read_text_layer(page, thumbnail, turn=turn)

    def _page(self, index: int) -> Any:
        if self._document.is_closed:
            msg = "the document is closed"
            raise ValueError(msg)
        page = self._document.load_page(index)
        keys = self._document.xref_get_keys(page.xref)
        if not keys:
            msg = "the document lists the page, but the page itself is not in the file"
            raise ValueError(msg)
        if self._document.is_repaired:
            self._check_contents(page)
        if fixes := self._impossible(page):
            for key, value in fixes.items():
                self._document.xref_set_key(page.xref, key, value)
            logger.warning(
                "%s, page %d: impossible %s, read as %s",
                self._source, index + 1, " and ".join(fixes), " and ".join(fixes.values()),
            )  # fmt: skip
            del page
            page = self._document.load_page(index)
        return page

    def _impossible(self, page: Any) -> dict[str, str]:
        """Give the keys of the page that no viewer could follow, with values that it can."""
        fixes: dict[str, str] = {}
        rotate = self._inherited(page.xref, "Rotate")
        if page.rotation == 0 and _number(rotate) % 360:
            # MuPDF would round 45 up to 90; viewers read what is no quarter turn as none.
            fixes["Rotate"] = "0"
        unit = self._inherited(page.xref, "UserUnit")
        if unit and _number(unit) <= 0:
            fixes["UserUnit"] = "1"
        rect, media, crop = page.rect, page.mediabox, page.cropbox
        fallen_back = (
            _size(rect) in _LETTER
            and _size(media) not in _LETTER
            and (crop == media or _size(crop) not in _LETTER)
        )
        vanished = min(rect.width, rect.height) <= 1 < min(media.width, media.height)
        if (fallen_back or vanished) and self._inherited(page.xref, "CropBox"):
            fixes["CropBox"] = f"[{media.x0:g} {media.y0:g} {media.x1:g} {media.y1:g}]"
        return fixes

    def _inherited(self, xref: int, key: str) -> str:
        for _ in range(64):
            kind, value = self._document.xref_get_key(xref, key)
            if kind == "xref":
                return str(self._document.xref_object(int(value.split()[0]))).strip()
            if kind != "null":
                return str(value)
            kind, value = self._document.xref_get_key(xref, "Parent")
            if kind != "xref":
                return ""
            xref = int(value.split()[0])
        return ""

    def _check_contents(self, page: Any) -> None:
        kind, value = self._document.xref_get_key(page.xref, "Contents")
        lost = [xref for xref in page.get_contents() if not self._document.xref_is_stream(xref)]
        if kind == "xref" and not lost:
            xref = int(value.split()[0])
            if self._document.xref_object(xref).strip() == "null":
                lost = [xref]
        if lost:
            msg = "the file is damaged, and what is on the page is missing"
            raise ValueError(msg)

    def close(self) -> None:
        """Close the document; it may be called twice."""
        with mupdf():
            if not self._document.is_closed:
                self._document.close()
                _mupdf.TOOLS.store_shrink(100)


def _open(data: Path | bytes, source: str) -> Any:
    try:
        document = (
            _mupdf.open(stream=data, filetype="pdf")
            if isinstance(data, bytes)
            else _mupdf.open(data, filetype="pdf")
        )
    except Exception as error:  # noqa: BLE001 - MuPDF raises many kinds
        msg = f"{source} is a PDF that cannot be opened or repaired: {explain(error)}"
        raise CorruptSourceError(msg, source=source) from None
    if not document.is_pdf:
        document.close()
        msg = f"{source} starts like a PDF but is none"
        raise CorruptSourceError(msg, source=source)
    return document


def _size(box: Any) -> tuple[int, int]:
    return round(box.width), round(box.height)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _rasterise(page: Any, matrix: Any, *, has_images: bool) -> tuple[Image.Image, bytes | None]:
    """Give the page, and its bytes where they are those of MuPDF."""
    contents = page.get_displaylist(annots=True)
    if has_images:
        # A picture would be decoded twice, so its colour is looked for afterwards.
        image, pixels = _image(contents.get_pixmap(matrix=matrix))
        return (image.convert("L"), None) if _is_grey(image) else (image, pixels)
    small = matrix * _mupdf.Matrix(1 / _THUMBNAIL, 1 / _THUMBNAIL)
    is_grey = _is_grey(_image(contents.get_pixmap(matrix=small))[0])
    return _image(
        contents.get_pixmap(matrix=matrix, colorspace=_mupdf.csGRAY if is_grey else _mupdf.csRGB)
    )


def _image(pixmap: Any) -> tuple[Image.Image, bytes | None]:
    mode = "L" if pixmap.n == 1 else "RGB"
    pixels: bytes = pixmap.samples
    size = (pixmap.width, pixmap.height)
    image = Image.frombuffer(mode, size, pixels, "raw", mode, pixmap.stride, 1)
    return image, pixels if pixmap.stride == pixmap.width * pixmap.n else None


def _is_grey(image: Image.Image) -> bool:
    red, green, blue = image.split()
    for other in (green, blue):
        extrema = ImageChops.difference(red, other).getextrema()
        if cast("tuple[int, int]", extrema)[1] >= _TINT:
            return False
    return True


def _bound_cache(index: int, *, has_images: bool) -> None:
    # How full the cache is cannot be asked; pictures fill it, fonts are worth keeping.
    if has_images or index % _KEEP_FOR == _KEEP_FOR - 1:
        _mupdf.TOOLS.store_shrink(100)
