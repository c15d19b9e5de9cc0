"""Peers as subjects of the contract suite; see `contract_peers.py`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from contract.adapters import LangChainLoader, LlamaIndexReader, Subject

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it is being ended, and says so
    from langchain_community.document_loaders import PyMuPDFLoader
    from llama_index.readers.file import PDFReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


class WithoutLazy(LlamaIndexReader):
    """A reader whose `lazy_load_data` is only the base class's: what it can do is looked at."""

    def lazy(self, made: Any, path: Path) -> Iterator[Any]:
        """Give what `load_data` gives."""
        yield from made.load_data(path)

    def alazy(self, made: Any, path: Path) -> AsyncIterator[Any] | None:
        """Give what `aload_data` gives."""

        async def each() -> AsyncIterator[Any]:
            for document in await made.aload_data(path):
                yield document

        return each()


PEERS: list[Subject] = [
    LangChainLoader("PyMuPDFLoader", PyMuPDFLoader, "pymupdf:Page.get_text"),
    WithoutLazy("PDFReader", PDFReader, "pypdf._page:PageObject.extract_text"),
]
