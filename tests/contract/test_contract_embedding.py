"""What reaches an embedding model, which refuses an empty text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pymupdf
from contract.stage import written_pdf
from langchain_text_splitters import RecursiveCharacterTextSplitter
from llama_index.core.node_parser import SentenceSplitter

if TYPE_CHECKING:
    from contract.stage import Stage


def _embed(texts: list[str]) -> list[list[float]]:
    if not all(text.strip() for text in texts):
        msg = "400: input must not be an empty string"
        raise ValueError(msg)
    return [[float(len(text))] for text in texts]


def test_fault_49_chunks_of_a_blank_page_are_no_empty_strings(stage: Stage) -> None:
    document = pymupdf.open(stream=written_pdf([1, 2]))
    document.new_page(pno=1, width=260, height=390)
    path = stage.folder / "blank.pdf"
    document.save(path)
    documents: list[Any] = stage.subject.load(stage.make(path), path)
    if stage.subject.framework == "langchain":
        chunks: list[Any] = RecursiveCharacterTextSplitter().split_documents(documents)
    else:
        chunks = list(SentenceSplitter()(documents))
    vectors = _embed([stage.subject.embedded_text(chunk) for chunk in chunks])
    assert len(vectors) >= 2
