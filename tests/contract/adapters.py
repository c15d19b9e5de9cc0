"""What the suite needs to know of a loader, a parser or a reader; and the ones of this package.

To run the suite on other ones, put a list of subjects into a module that can be imported and name
it: `CONTRACT_SUBJECTS=my_module:SUBJECTS pytest tests/contract`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.documents.base import Blob

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRParser, DeepSeekOCRReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

__all__ = ["OURS", "LangChainLoader", "LangChainParser", "LlamaIndexReader", "Seen", "Subject"]


@dataclass(frozen=True)
class Seen:
    """What both frameworks have in a Document."""

    id: str | None
    text: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """Something that turns a file into Documents.

    Attributes:
        name: For people.
        build: Makes one: for a loader from the path and options, else from options alone.
        page_work: What is called once for each page that is read, as `module:Class.method`.
        options: True if it takes the options of this package and sends pages to a server.
    """

    name: str
    build: Callable[..., Any] = field(repr=False)
    page_work: str
    options: bool = False

    framework = ""

    def make(self, path: Path, **options: Any) -> Any:
        """Make one that is good for this file."""
        return self.build(**options)

    def lazy(self, made: Any, path: Path) -> Iterator[Any]:
        """Give Documents one after the other."""
        raise NotImplementedError

    def load(self, made: Any, path: Path) -> list[Any]:
        """Give all Documents."""
        raise NotImplementedError

    def alazy(self, made: Any, path: Path) -> AsyncIterator[Any] | None:
        """Give Documents one after the other on the running loop; None if there is no such way."""
        return None

    def aload(self, made: Any, path: Path) -> Awaitable[list[Any]] | None:
        """Give all Documents on the running loop; None if there is no such way."""
        return None

    def seen(self, document: Any) -> Seen:
        """Look at a Document."""
        return Seen(document.id, document.page_content, document.metadata)

    def embedded_text(self, document: Any) -> str:
        """Give the text that goes to an embedding model if nothing is done about it."""
        return self.seen(document).text


class LangChainLoader(Subject):
    """A `BaseLoader`, whose class takes the path first."""

    framework = "langchain"

    def make(self, path: Path, **options: Any) -> Any:
        return self.build(str(path), **options)

    def lazy(self, made: Any, path: Path) -> Iterator[Any]:
        return iter(made.lazy_load())

    def load(self, made: Any, path: Path) -> list[Any]:
        documents: list[Any] = made.load()
        return documents

    def alazy(self, made: Any, path: Path) -> AsyncIterator[Any] | None:
        return aiter(made.alazy_load())

    def aload(self, made: Any, path: Path) -> Awaitable[list[Any]] | None:
        loading: Awaitable[list[Any]] = made.aload()
        return loading


class LangChainParser(Subject):
    """A `BaseBlobParser`; its asynchronous method is tried if it has one."""

    framework = "langchain"

    def lazy(self, made: Any, path: Path) -> Iterator[Any]:
        return iter(made.lazy_parse(Blob.from_path(path)))

    def load(self, made: Any, path: Path) -> list[Any]:
        there = path.exists()
        blob = Blob.from_data(path.read_bytes(), path=str(path)) if there else Blob.from_path(path)
        documents: list[Any] = made.parse(blob)
        return documents

    def alazy(self, made: Any, path: Path) -> AsyncIterator[Any] | None:
        parse = getattr(made, "alazy_parse", None)
        return None if parse is None else aiter(parse(Blob.from_path(path)))


class LlamaIndexReader(Subject):
    """A `BaseReader` whose `load_data` takes the path first."""

    framework = "llama-index"

    def lazy(self, made: Any, path: Path) -> Iterator[Any]:
        return iter(made.lazy_load_data(path))

    def load(self, made: Any, path: Path) -> list[Any]:
        documents: list[Any] = made.load_data(path)
        return documents

    def alazy(self, made: Any, path: Path) -> AsyncIterator[Any] | None:
        async def each() -> AsyncIterator[Any]:
            # LlamaIndex awaits the whole and then iterates.
            for document in await made.alazy_load_data(path):
                yield document

        return each()

    def aload(self, made: Any, path: Path) -> Awaitable[list[Any]] | None:
        loading: Awaitable[list[Any]] = made.aload_data(path)
        return loading

    def seen(self, document: Any) -> Seen:
        return Seen(document.id_, document.text, document.metadata)

    def embedded_text(self, document: Any) -> str:
        text: str = document.get_content(metadata_mode="embed")
        return text


_DRAWING = "deepseek_ocr_loaders.source:OpenSource.picture"

OURS: list[Subject] = [
    LangChainLoader("DeepSeekOCRLoader", DeepSeekOCRLoader, _DRAWING, options=True),
    LangChainParser("DeepSeekOCRParser", DeepSeekOCRParser, _DRAWING, options=True),
    LlamaIndexReader("DeepSeekOCRReader", DeepSeekOCRReader, _DRAWING, options=True),
]
