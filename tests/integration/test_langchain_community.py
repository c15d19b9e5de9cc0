"""langchain-community's directory loaders and parsers, which drive ours by duck typing."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import pymupdf
import pytest
from contract.stage import written_pdf
from support.fault_server import FaultServer, marked_image, markers_in, status

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRParser

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it is being ended, and says so
    from langchain_community.document_loaders import DirectoryLoader, PyMuPDFLoader
    from langchain_community.document_loaders.generic import GenericLoader
    from langchain_community.document_loaders.parsers.generic import MimeTypeBasedParser
    from langchain_community.document_loaders.parsers.txt import TextParser

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from PIL import Image


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, numbers in {"a": [1, 2, 3], "b": [4], "c/a": [5, 6]}.items():
        path = tmp_path / f"{name}.pdf"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(written_pdf(numbers))
    marked_image(7).save(tmp_path / "d.png")
    return tmp_path


def _numbers(documents: list[Any]) -> list[int]:
    return [number for document in documents for number in markers_in(document.page_content)]


@pytest.mark.parametrize("threads", [False, True])
def test_directory_loader(folder: Path, server: FaultServer, threads: bool) -> None:
    loader = DirectoryLoader(
        str(folder),
        glob=["**/*.pdf", "**/*.png"],
        loader_cls=DeepSeekOCRLoader,  # type: ignore[arg-type] - its list of classes is closed
        loader_kwargs={"base_url": server.base_url, "max_concurrency": 4},
        use_multithreading=threads,
        max_concurrency=4,
    )
    documents = loader.load()
    assert sorted(_numbers(documents)) == [1, 2, 3, 4, 5, 6, 7]
    assert not any(isinstance(document, list) for document in documents)
    by_file: dict[str, list[int]] = {}
    for document in documents:
        by_file.setdefault(document.metadata["source"], []).append(document.metadata["page"])
    assert by_file == {
        str(folder / "a.pdf"): [0, 1, 2],
        str(folder / "b.pdf"): [0],
        str(folder / "c/a.pdf"): [0, 1],
        str(folder / "d.png"): [0],
    }
    assert server.most_in_flight <= 4


def test_directory_loader_shows_what_failed(folder: Path, server: FaultServer) -> None:
    server.script = lambda request: status(400, "no such luck") if request.marker == 4 else None
    options: dict[str, Any] = {"base_url": server.base_url}
    loader = DirectoryLoader(
        str(folder),
        glob="**/*.pdf",
        loader_cls=DeepSeekOCRLoader,  # type: ignore[arg-type]
        loader_kwargs=options,
    )
    with pytest.raises(Exception, match=r"b\.pdf.*no such luck|no such luck.*b\.pdf"):
        loader.load()


def test_generic_loader_over_a_folder(folder: Path, server: FaultServer) -> None:
    loader = GenericLoader.from_filesystem(
        folder, glob="**/*", suffixes=[".pdf"], parser=DeepSeekOCRParser(base_url=server.base_url)
    )
    documents = list(loader.lazy_load())
    assert sorted(_numbers(documents)) == [1, 2, 3, 4, 5, 6]
    assert len({document.id for document in documents}) == 6
    assert Counter(document.metadata["source"] for document in documents) == {
        str(folder / "a.pdf"): 3,
        str(folder / "b.pdf"): 1,
        str(folder / "c/a.pdf"): 2,
    }


def test_generic_loader_is_lazy(folder: Path, server: FaultServer) -> None:
    loader = GenericLoader.from_filesystem(
        folder, glob="a.pdf", parser=DeepSeekOCRParser(base_url=server.base_url)
    )
    documents = loader.lazy_load()
    assert server.requests == []
    assert _numbers([next(documents)]) == [1]


def test_mime_type_based_parser(folder: Path, server: FaultServer) -> None:
    (folder / "note.txt").write_text("plain words")
    ours = DeepSeekOCRParser(base_url=server.base_url)
    parser = MimeTypeBasedParser(
        handlers={"application/pdf": ours, "image/png": ours, "text/plain": TextParser()}
    )
    loader = GenericLoader.from_filesystem(folder, glob="*", parser=parser)
    documents = loader.load()
    assert sorted(_numbers(documents)) == [1, 2, 3, 4, 7]
    assert "plain words" in [document.page_content for document in documents]


def _pdf_with_a_picture(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    document = pymupdf.open()
    page = document.new_page()
    page.insert_text((72, 72), "words of the page")
    page.insert_image(pymupdf.Rect(72, 100, 176, 256), stream=stream.getvalue())
    data: bytes = document.tobytes()
    document.close()
    return data


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_as_the_images_parser_of_another_loader(
    tmp_path: Path, server: FaultServer, mode: str
) -> None:
    path = tmp_path / "with_picture.pdf"
    path.write_bytes(_pdf_with_a_picture(marked_image(42).convert(mode)))
    # The blobs arrive as application/x-npy: an array that numpy.save wrote.
    loader = PyMuPDFLoader(
        str(path),
        mode="page",
        extract_images=True,
        images_parser=DeepSeekOCRParser(base_url=server.base_url),  # type: ignore[arg-type]
    )
    (document,) = loader.load()
    assert "words of the page" in document.page_content
    assert markers_in(document.page_content) == [42]
