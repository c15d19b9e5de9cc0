"""LlamaIndex: `DeepSeekOCRReader`, for direct use, `SimpleDirectoryReader` and pipelines."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from deepseek_ocr_loaders import bridge
from deepseek_ocr_loaders.documents import EXCLUDED_KEYS
from deepseek_ocr_loaders.errors import MissingExtraError
from deepseek_ocr_loaders.pipeline import all_wanted, read_documents
from deepseek_ocr_loaders.report import RunReport
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import expand

try:
    from llama_index.core.readers.base import BasePydanticReader
    from llama_index.core.schema import Document
except ImportError as error:
    extra, purpose = "llama-index", "deepseek_ocr_loaders.llama_index"
    raise MissingExtraError(extra, purpose) from error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping
    from typing import Unpack

    from fsspec import AbstractFileSystem

    from deepseek_ocr_loaders.documents import DocumentData
    from deepseek_ocr_loaders.settings import Options

__all__ = ["DeepSeekOCRReader"]


class DeepSeekOCRReader(BasePydanticReader):
    """Read PDFs and pictures as LlamaIndex Documents with DeepSeek-OCR.

    Args:
        settings: A finished set of options, as `to_dict` gives it; instead of `options`.
        **options: How pages are read and by whom; see `Options` and `docs/parameters.md`. Keys
            and passwords are not part of `to_dict` and `to_json`.

    Raises:
        ConfigurationError: A parameter that cannot be used.

    Examples:
        >>> documents = DeepSeekOCRReader().load_data("scan.tiff")
    """

    is_remote: bool = False
    settings: Settings

    _report: RunReport = PrivateAttr(default_factory=RunReport)

    def __init__(
        self,
        *,
        settings: Settings | Mapping[str, Any] | None = None,
        is_remote: bool = False,
        **options: Unpack[Options],
    ) -> None:
        if not isinstance(settings, Settings):
            settings = Settings.create({**(settings or {}), **options})
        super().__init__(settings=settings, is_remote=is_remote)

    @classmethod
    def class_name(cls) -> str:
        """Give the name that serialised readers carry."""
        return "DeepSeekOCRReader"

    @property
    def report(self) -> RunReport:
        """What the last run did: pages, seconds, tokens, retries."""
        return self._report

    def lazy_load_data(
        self,
        file_path: Any,
        extra_info: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
    ) -> Iterator[Document]:
        """Give one Document after the other, in page order, while later pages are read.

        Args:
            file_path: A path, an http(s) or fsspec address, bytes, a binary file object, a folder,
                or a list of these.
            extra_info: Added to the metadata of each Document, where it wins; left as it is.
            fs: The fsspec file system that paths belong to; the local disk by default.

        Raises:
            DeepSeekOCRError: What went wrong, with file and page; see `on_error`.
        """
        for data in bridge.iterate(lambda: self._documents(file_path, fs)):
            yield _to_llama_index(data, extra_info)

    def load_data(
        self,
        file_path: Any,
        extra_info: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
    ) -> list[Document]:
        """Give all Documents; arguments and errors as for `lazy_load_data`."""
        with all_wanted():
            return list(self.lazy_load_data(file_path, extra_info, fs))

    async def aload_data(
        self,
        file_path: Any,
        extra_info: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
    ) -> list[Document]:
        """Give all Documents, read on the running event loop without blocking it."""
        with all_wanted():
            async with aclosing(self._documents(file_path, fs)) as documents:
                return [_to_llama_index(data, extra_info) async for data in documents]

    async def alazy_load_data(
        self,
        file_path: Any,
        extra_info: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
    ) -> list[Document]:
        """Give all Documents: LlamaIndex awaits this method as a whole."""
        return await self.aload_data(file_path, extra_info, fs)

    def _documents(
        self, file_path: Any, fs: AbstractFileSystem | None
    ) -> AsyncGenerator[DocumentData, None]:
        self._report = RunReport()
        return read_documents(expand(file_path, fs=fs), self.settings, fs=fs, report=self._report)


def _to_llama_index(data: DocumentData, extra_info: Mapping[str, Any] | None) -> Document:
    return Document(
        id_=data.id,
        text=data.text,
        metadata={**data.metadata, **(extra_info or {})},
        # Lists of this Document's own: SimpleDirectoryReader appends to them.
        excluded_embed_metadata_keys=list(EXCLUDED_KEYS),
        excluded_llm_metadata_keys=list(EXCLUDED_KEYS),
    )
