"""From chunks back to pages and boxes, and their picture."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pymupdf
import pytest
from support.answers import block, page_result, real_pages, source_info

from deepseek_ocr_loaders.citations import Citation, cite, highlight
from deepseek_ocr_loaders.documents import DocumentBuilder, DocumentData
from deepseek_ocr_loaders.errors import ConfigurationError
from deepseek_ocr_loaders.page import Box, PageResult
from deepseek_ocr_loaders.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from PIL import Image


@dataclass
class Chunk:
    """A LangChain Document, as far as citing goes."""

    page_content: str
    metadata: dict[str, Any] = field(default_factory=dict)


def loaded(pages: list[PageResult], source: str = "x.pdf", **options: Any) -> list[DocumentData]:
    info = source_info(total_pages=len(pages), source=source)
    builder = DocumentBuilder(info, Settings.create({"layout": True} | options))
    return [document for page in pages for document in builder.add(page)] + builder.finish()


def real() -> list[PageResult]:
    return [page_result(raw, index) for index, raw in enumerate(real_pages())]


def expected(document: DocumentData, start: int, length: int) -> list[tuple[str | None, str]]:
    return [
        (each.label, document.text[each.start or 0 : each.end])
        for each in cite(Chunk(document.text, document.metadata))
        if (each.start or 0) < start + length and (each.end or 0) > start
    ]


def test_a_whole_document_cites_its_blocks() -> None:
    raw = block("title", (1, 2, 3, 4), "# Head") + block("text", (5, 6, 7, 8), "Body")
    (document,) = loaded([page_result(raw)])
    assert cite(Chunk(document.text, document.metadata)) == [
        Citation(0, "title", (Box(1, 2, 3, 4),), 0, 6),
        Citation(0, "text", (Box(5, 6, 7, 8),), 8, 12),
    ]


@pytest.mark.parametrize("mode", ["page", "document"])
@pytest.mark.parametrize("size", [80, 300, 2000])
def test_a_chunk_is_found_by_its_characters(mode: str, size: int) -> None:
    step = 997 if mode == "page" else 7919
    for document in loaded(real(), mode=mode)[:8]:
        for start in range(0, len(document.text) - size, step):
            text = document.text[start : start + size].strip()
            begin = document.text.index(text, start)
            found = cite(Chunk(text, document.metadata))
            blocks = expected(document, begin, len(text))
            assert [each.label for each in found] == [label for label, _ in blocks]
            for each, (_, said) in zip(found, blocks, strict=True):
                assert text[each.start : each.end] in said


def test_an_offset_that_the_splitter_noted_decides_between_equal_places() -> None:
    raw = "".join(block("text", (n, n, n + 1, n + 1), "The same words in each.") for n in range(9))
    (document,) = loaded([page_result(raw)])
    text = "The same words in each."
    start = document.text.index(text, 60)
    (found,) = cite(Chunk(text, document.metadata | {"start_index": start}))
    assert found.boxes == (Box(3, 3, 4, 4),)
    # Without it nothing tells which one it is: all are cited.
    assert len(cite(Chunk(text, document.metadata))) == 9
    # An offset into another text is not believed.
    assert (
        len(cite(Chunk("Other words altogether here", document.metadata | {"start_index": 4}))) == 9
    )


def test_elements_and_pages_without_layout_cite_what_is_known() -> None:
    raw = block("title", (1, 2, 3, 4), "# Head") + block("text", (5, 6, 7, 8), "Body")
    title, _ = loaded([page_result(raw)], mode="element", layout=False)
    assert cite(Chunk("# He", title.metadata)) == [Citation(0, "title", (Box(1, 2, 3, 4),), 0, 4)]
    (page,) = loaded([page_result(raw)], layout=False)
    (found,) = cite(Chunk("Body", page.metadata))
    assert (found.page, found.page_number, found.boxes) == (0, 1, ())


def test_nodes_of_llama_index_are_taken_as_they_are() -> None:
    schema = pytest.importorskip("llama_index.core.schema")
    (document,) = loaded([real()[0]])
    at = document.text.index("Abstract") - 3
    text = document.text[at : at + 120]
    node = schema.TextNode(text=text, metadata=document.metadata, start_char_idx=at)
    for given in (node, schema.NodeWithScore(node=node, score=0.5)):
        assert [each.label for each in cite(given)] == ["sub_title", "text"]


def test_chunks_of_a_real_splitter_lead_back_to_their_blocks() -> None:
    splitters = pytest.importorskip("langchain_text_splitters")
    documents = pytest.importorskip("langchain_core.documents")
    splitter = splitters.RecursiveCharacterTextSplitter(chunk_size=300, chunk_overlap=40)
    for data in loaded(real())[:4]:
        whole = documents.Document(page_content=data.text, metadata=data.metadata)
        for chunk in splitter.split_documents([whole]):
            found = cite(chunk)
            if len(chunk.page_content) > 100:
                cited = "".join(chunk.page_content[each.start : each.end] for each in found)
                assert "".join(cited.split()) == "".join(chunk.page_content.split())


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"source": "x"},
        {"layout": "{", "page": 0},
        {"layout": "{}", "page": 0},
        {"layout": '[{"boxes":[]}]'},
    ],
)
def test_metadata_that_says_nothing_is_an_error_that_says_what_to_do(
    metadata: dict[str, Any],
) -> None:
    with pytest.raises(ConfigurationError, match=r"layout|page"):
        cite(Chunk("x", metadata))


# --- highlight ------------------------------------------------------------------------------


def paper(path: Path, pages: int = 1, rotation: int = 0) -> str:
    with pymupdf.open() as document:
        for _ in range(pages):
            page = document.new_page(width=400, height=600)
            page.insert_text((40, 60), "Words on the page")
            page.set_rotation(rotation)
        document.save(path)
    return str(path)


def is_marked(image: Image.Image, box: Box) -> bool:
    left, top, right, bottom = box.pixels(*image.size)
    red, green, blue = image.getpixel(((left + right) // 2, (top + bottom) // 2))  # type: ignore[misc]
    return (red, green, blue) != (255, 255, 255)


def test_highlight_draws_the_boxes_of_a_chunk_on_its_page(tmp_path: Path) -> None:
    source = paper(tmp_path / "x.pdf")
    raw = block("title", (100, 300, 600, 350), "# Head of it") + block(
        "text", (100, 600, 600, 700), "Body of the page"
    )
    (document,) = loaded([page_result(raw)], source)
    image = highlight(Chunk("Body of the page", document.metadata | {"start_index": 14}))
    assert image.mode == "RGB"
    assert is_marked(image, Box(100, 600, 600, 700))
    assert not is_marked(image, Box(100, 300, 600, 350))
    both = highlight(Chunk(document.text, document.metadata), color="blue")
    assert is_marked(both, Box(100, 300, 600, 350))
    png = io.BytesIO()
    both.save(png, "PNG")
    assert png.getvalue().startswith(b"\x89PNG")


def test_highlight_chooses_the_page(tmp_path: Path) -> None:
    source = paper(tmp_path / "x.pdf", pages=2)
    pages = [
        page_result(block("text", (100, 300, 600, 900 - 300 * n), f"Page {n}"), n) for n in (0, 1)
    ]
    (document,) = loaded(pages, source, mode="document")
    chunk = Chunk(document.text, document.metadata)
    assert is_marked(highlight(chunk), Box(100, 700, 600, 800))
    assert not is_marked(highlight(chunk, page_number=2), Box(100, 700, 600, 800))
    with pytest.raises(ConfigurationError, match="page 3, but from 1, 2"):
        highlight(chunk, page_number=3)


def test_highlight_takes_the_source_from_elsewhere(tmp_path: Path) -> None:
    path = paper(tmp_path / "x.pdf")
    (document,) = loaded([page_result(block("text", (100, 300, 600, 400), "Words"))], "gone.pdf")
    chunk = Chunk(document.text, document.metadata)
    data = (tmp_path / "x.pdf").read_bytes()
    for source in (path, data):
        assert is_marked(highlight(chunk, source=source), Box(100, 300, 600, 400))


def test_highlight_turns_the_page_as_it_was_turned_when_it_was_read(tmp_path: Path) -> None:
    source = paper(tmp_path / "x.pdf")
    page = page_result(
        block("text", (100, 300, 600, 400), "Words"), width=1920, height=1280, rotation=90
    )
    (document,) = loaded([page], source)
    image = highlight(Chunk(document.text, document.metadata))
    assert image.width > image.height
    assert is_marked(image, Box(100, 300, 600, 400))


def test_highlight_of_a_box_without_area_shows_something(tmp_path: Path) -> None:
    source = paper(tmp_path / "x.pdf")
    (document,) = loaded([page_result(block("text", (300, 300, 300, 600), "Words"))], source)
    assert is_marked(highlight(Chunk(document.text, document.metadata)), Box(300, 300, 300, 600))


def test_highlight_says_what_is_wrong(tmp_path: Path) -> None:
    (document,) = loaded([page_result("")], paper(tmp_path / "x.pdf"))
    with pytest.raises(ConfigurationError, match="no blocks"):
        highlight(Chunk("", document.metadata))
    (document,) = loaded([page_result(block("text", (1, 2, 3, 4), "x"))], paper(tmp_path / "y.pdf"))
    with pytest.raises(ConfigurationError, match="color"):
        highlight(Chunk("x", document.metadata), color="no such")
    without = {key: value for key, value in document.metadata.items() if key != "source"}
    with pytest.raises(ConfigurationError, match="source="):
        highlight(Chunk("x", without))
