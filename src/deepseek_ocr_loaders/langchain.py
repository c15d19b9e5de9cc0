"""LangChain: `DeepSeekOCRLoader` for paths and addresses, `DeepSeekOCRParser` for blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders import bridge
from deepseek_ocr_loaders.errors import MissingExtraError
from deepseek_ocr_loaders.pipeline import all_wanted, read_converted
from deepseek_ocr_loaders.report import RunReport
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import expand

try:
    from langchain_core.document_loaders import BaseBlobParser, BaseLoader
    from langchain_core.documents import Document
except ImportError as error:
    extra, purpose = "langchain", "deepseek_ocr_loaders.langchain"
    raise MissingExtraError(extra, purpose) from error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator
    from typing import Unpack

    from fsspec import AbstractFileSystem
    from langchain_core.documents.base import Blob

    from deepseek_ocr_loaders.documents import DocumentData
    from deepseek_ocr_loaders.settings import Options

__all__ = ["DeepSeekOCRLoader", "DeepSeekOCRParser"]


class _Core:
    """What loader and parser share: the settings, and the report of the last run."""

    def __init__(self, options: Options) -> None:
        self.settings = Settings.create(options)
        self.report = RunReport()

    def _read(
        self, sources: Iterable[object], fs: AbstractFileSystem | None = None
    ) -> AsyncGenerator[Document, None]:
        self.report = RunReport()
        return read_converted(_to_langchain, sources, self.settings, fs=fs, report=self.report)


def _to_langchain(data: DocumentData) -> Document:
    return Document(page_content=data.text, metadata=data.metadata, id=data.id)


class DeepSeekOCRLoader(_Core, BaseLoader):
    """Load PDFs and pictures as LangChain Documents, read by DeepSeek-OCR.

    Args:
        file_path: A path, an http(s) or fsspec address, bytes, a binary file object, a `Blob`, a
            folder, or a list of these.
        fs: The fsspec file system that paths belong to; the local disk by default.
        glob: Which files of a folder, for example `**/*.pdf`; every supported kind by default.
        **options: How pages are read and by whom; see `Options` and `docs/parameters.md`.

    Attributes:
        report: What the last run did: pages, seconds, tokens, retries.

    Raises:
        ConfigurationError: A parameter that cannot be used. Files are not touched before the
            first Document is asked for.

    Examples:
        >>> docs = DeepSeekOCRLoader("paper.pdf").load()
    """

    def __init__(
        self,
        file_path: Any,
        *,
        fs: AbstractFileSystem | None = None,
        glob: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(options)
        self.file_path = file_path
        self.fs = fs
        self.glob = glob

    def load(self) -> list[Document]:
        """Give all Documents, at full speed from the first page on; errors as for `lazy_load`."""
        with all_wanted():
            return super().load()

    async def aload(self) -> list[Document]:
        """Give all Documents, read on the running event loop without blocking it."""
        with all_wanted():
            return await super().aload()

    def lazy_load(self) -> Iterator[Document]:
        """Give one Document after the other, in page order, while later pages are read.

        Raises:
            DeepSeekOCRError: What went wrong, with file and page; see `on_error`.
        """
        yield from bridge.iterate(self.alazy_load)

    def alazy_load(self) -> AsyncGenerator[Document, None]:
        """Give the same Documents on the running event loop, without blocking it."""
        return self._read(expand(self.file_path, fs=self.fs, glob=self.glob), self.fs)


class DeepSeekOCRParser(_Core, BaseBlobParser):
    """Parse blobs that hold a PDF or a picture, for `GenericLoader` and as an `images_parser`.

    Args:
        **options: As for `DeepSeekOCRLoader`.

    Attributes:
        report: What the last run did.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(options)

    def parse(self, blob: Blob) -> list[Document]:
        """Give all Documents of one blob; errors as for `lazy_parse`."""
        with all_wanted():
            return super().parse(blob)

    def lazy_parse(self, blob: Blob) -> Iterator[Document]:
        """Give the Documents of one blob, in page order.

        Raises:
            DeepSeekOCRError: What went wrong, with file and page; see `on_error`.
        """
        yield from bridge.iterate(lambda: self.alazy_parse(blob))

    def alazy_parse(self, blob: Blob) -> AsyncGenerator[Document, None]:
        """Give the same Documents on the running event loop; the base class has no such method."""
        return self._read([blob])
