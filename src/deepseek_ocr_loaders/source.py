"""One document, opened: what it is, how many pages it has, and each page as a picture.

What it is is decided by its content. Nothing is read before it is asked for, and the file is
closed at the end of a `with` block, by `close`, or when nothing refers to it any more.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.encode import encode
from deepseek_ocr_loaders.errors import RenderError, SourceError
from deepseek_ocr_loaders.folder import expand
from deepseek_ocr_loaders.ink import has_ink
from deepseek_ocr_loaders.inputs import read_input
from deepseek_ocr_loaders.page import Picture, SourceInfo
from deepseek_ocr_loaders.picture import PictureFile
from deepseek_ocr_loaders.render import PdfFile, explain
from deepseek_ocr_loaders.sizing import plan
from deepseek_ocr_loaders.sniff import require_readable, sniff

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from fsspec import AbstractFileSystem

    from deepseek_ocr_loaders.drawing import Drawing, PageFile
    from deepseek_ocr_loaders.inputs import Content
    from deepseek_ocr_loaders.page import Block
    from deepseek_ocr_loaders.settings import Settings

__all__ = ["OpenSource", "expand", "open_source"]

logger = logging.getLogger(__name__)


def open_source(
    source: object,
    *,
    settings: Settings,
    fs: AbstractFileSystem | None = None,
    name: str | None = None,
) -> OpenSource:
    """Open one document.

    Args:
        source: A path, an http(s) or fsspec address, bytes, a binary file object, or a LangChain
            Blob.
        settings: Password, size, rotation and the limits of downloads.
        fs: The fsspec file system that a path belongs to.
        name: What to call it in metadata and errors; needed only for bytes.

    Raises:
        SourceError: It cannot be opened; the subclass says why.
    """
    content = read_input(source, settings=settings, fs=fs, name=name)
    try:
        kind = sniff(*content.ends())
        require_readable(kind, source=content.source)
        file: PdfFile | PictureFile = (
            PdfFile(content.data, source=content.source, password=settings.password)
            if kind == "pdf"
            else PictureFile(content.data, kind=kind, source=content.source)
        )
        return OpenSource(
            file, content, settings=settings, kind="pdf" if kind == "pdf" else "image"
        )
    except OSError as error:
        if isinstance(error, SourceError):
            raise
        msg = f"{content.source} cannot be read: {error.strerror or error}"
        raise SourceError(msg, source=content.source) from None


class OpenSource:
    """An open document; a context manager that closes it.

    Attributes:
        info: What is known about it before its pages are read.
    """

    def __init__(
        self, file: PdfFile | PictureFile, content: Content, *, settings: Settings, kind: str
    ) -> None:
        self._file: PageFile = file
        self._settings = settings
        self._warned: set[int] = set()
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, file.close)
        self.info = SourceInfo(
            source=content.source,
            file_name=content.file_name,
            content_hash=content.sha256(),
            kind=kind,
            total_pages=file.total_pages,
            properties=file.properties,
        )

    def label(self, index: int) -> str:
        """Give the page number as printed, counted from index 0; else `index + 1`."""
        return self._file.label(index)

    def picture(
        self, index: int, *, model: str = "deepseek-ocr", always_tiled: bool = False
    ) -> Picture:
        """Draw one page and encode it; may be called from several threads at once.

        Args:
            index: The page, counted from 0.
            model: The model's id, which decides the size.
            always_tiled: Pad small pictures for servers that die on them; see `sizing.plan`.

        Raises:
            RenderError: This page cannot be drawn; the others can.
        """
        settings = self._settings
        size = partial(
            plan,
            model=model,
            detail=settings.detail,
            dpi=settings.dpi,
            vector=self.info.kind == "pdf",
            always_tiled=always_tiled,
        )
        try:
            self._check_index(index)
            drawing = self._upright(index, partial(self._file.draw, index, size=size))
            inked = has_ink(drawing.image)
            if not inked:
                self._warn_of_missing_fonts(index)
            data, media_type = encode(drawing.image, drawing.pixels)
            return Picture(
                data=data,
                media_type=media_type,
                width=drawing.image.width,
                height=drawing.image.height,
                rotation=drawing.rotation,
                has_ink=inked,
            )
        except Exception as error:
            raise self._page_error(index, error) from error

    def _check_index(self, index: int) -> None:
        # Libraries count negative numbers from the end, which no page number means.
        if not 0 <= index < self.info.total_pages:
            msg = f"the document has {self.info.total_pages} pages"
            raise ValueError(msg)

    def _upright(self, index: int, draw: partial[Drawing]) -> Drawing:
        rotate = self._settings.rotate
        number = index + 1
        if isinstance(rotate, int):
            return draw(turn=rotate)
        if isinstance(rotate, Mapping):
            return draw(turn=_quarter_turns(rotate.get(number, 0)))
        drawing = draw(turn=0)
        turn = _quarter_turns(rotate(drawing.image.copy(), number))
        return draw(turn=turn) if turn else drawing

    def _warn_of_missing_fonts(self, index: int) -> None:
        with self._lock:
            if index in self._warned:
                return
            self._warned.add(index)
        if self._file.text(index).strip():
            logger.warning(
                "%s, page %d has text but nothing of it can be seen: its fonts are missing here, "
                "or it is hidden behind a picture that is gone (fonts for Chinese, Japanese and "
                "Korean are in the package fonts-noto-cjk)",
                self.info.source,
                index + 1,
            )

    def text_layer(self, index: int) -> tuple[Block, ...] | None:
        """Give the page's own text in reading order where it can be trusted, else None.

        Raises:
            RenderError: The page cannot be read at all.
        """
        rotate = self._settings.rotate
        try:
            self._check_index(index)
            turn = _quarter_turns(rotate.get(index + 1, 0)) if isinstance(rotate, Mapping) else 0
            # A function turns what is drawn, and such a page is not drawn.
            return self._file.text_layer(index, turn=rotate if isinstance(rotate, int) else turn)
        except Exception as error:
            raise self._page_error(index, error) from error

    def _page_error(self, index: int, error: Exception) -> RenderError:
        what = "out of memory" if isinstance(error, MemoryError) else explain(error)
        return RenderError(
            f"{self.info.source}, page {index + 1} cannot be drawn: {what}",
            source=self.info.source,
            page_number=index + 1,
        )

    def close(self) -> None:
        """Close the file; it may be called twice, and from any thread."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _quarter_turns(degrees: object) -> int:
    if isinstance(degrees, bool) or not isinstance(degrees, int) or degrees % 90:
        msg = f"rotate gave {degrees!r}: it must be a multiple of 90, in degrees clockwise"
        raise ValueError(msg)
    return degrees % 360
