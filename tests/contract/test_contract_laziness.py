"""Nothing is read before it is asked for, and not much more than that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from contract.stage import FIRST, written_pdf

if TYPE_CHECKING:
    from contract.stage import Stage


def test_nothing_is_read_when_it_is_made(stage: Stage) -> None:
    made = stage.make()
    documents = stage.lazy(made)
    assert stage.pages_read == []
    assert iter(documents) is documents, "a list is not lazy"


def test_the_first_document_is_out_before_the_tenth_page_is_read(stage: Stage) -> None:
    documents = stage.lazy()
    first = next(documents)
    time.sleep(0.3)  # what runs ahead has time to
    assert len(stage.pages_read) < 10
    assert stage.numbers([first]) == [FIRST]
    assert len(list(documents)) == 19


async def test_the_first_document_is_out_before_the_tenth_page_is_read_async(stage: Stage) -> None:
    if stage.subject.framework == "llama-index":
        pytest.skip("LlamaIndex awaits the whole")
    documents = stage.subject.alazy(stage.make(), stage.pdf)
    if documents is None:
        pytest.skip("has no asynchronous way")
    first = await anext(documents)
    time.sleep(0.3)  # noqa: ASYNC251 - background threads have time to run ahead
    assert len(stage.pages_read) < 10
    assert stage.numbers([first]) == [FIRST]
    assert len([document async for document in documents]) == 19


def test_reading_ahead_is_bounded(stage: Stage) -> None:
    long = stage.folder / "long.pdf"
    long.write_bytes(written_pdf(range(300)))
    documents = stage.lazy(path=long)
    next(documents)
    next(documents)
    time.sleep(0.5)
    assert len(stage.pages_read) < 100
    assert stage.numbers(documents) == list(range(2, 300))
