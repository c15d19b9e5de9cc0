"""Documents as files, and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepseek_ocr_loaders.documents import DocumentData
from deepseek_ocr_loaders.export import SUFFIXES, read_jsonl, write

VALUES = st.one_of(
    st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()
)
DOCUMENTS = st.lists(
    st.builds(
        DocumentData,
        id=st.uuids().map(str),
        text=st.text(),
        metadata=st.dictionaries(st.text(), VALUES),
    ),
    max_size=5,
)


@settings(deadline=None)
@given(DOCUMENTS)
def test_jsonl_comes_back_as_it_was(documents: list[DocumentData]) -> None:
    text = "".join(write(documents, "jsonl"))
    # Whatever takes it apart into lines: files and str disagree about the end of one.
    assert list(read_jsonl(text.splitlines())) == documents
    assert list(read_jsonl(text.split("\n"))) == documents


@settings(deadline=None)
@given(DOCUMENTS)
def test_json_is_one_array_of_the_same(documents: list[DocumentData]) -> None:
    values = json.loads("".join(write(documents, "json")))
    assert [value["page_content"] for value in values] == [d.text for d in documents]


def test_half_a_surrogate_pair_comes_back_from_a_file() -> None:
    document = DocumentData("x", "a \ud83d b", {"page": 0})
    data = "".join(write([document], "jsonl")).encode("utf-8", "backslashreplace")
    assert list(read_jsonl(data.decode("utf-8").splitlines())) == [document]


def test_texts_stand_apart_and_end_with_a_line() -> None:
    documents = [DocumentData(str(n), text, {}) for n, text in enumerate(["a\n", "", "\nb\nc"])]
    assert "".join(write(documents, "markdown")) == "a\n\n\n\nb\nc\n"
    assert "".join(write([], "text")) == ""


def test_nothing_is_written_before_it_is_there() -> None:
    def documents() -> object:
        yield DocumentData("1", "a", {})
        pytest.fail("asked for too early")

    for form in SUFFIXES:
        assert "a" in next(write(documents(), form))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line", ["nonsense", "[]", "3", '{"id": "x"}', '{"page_content": "", "metadata": {}}', "null"]
)
def test_a_line_that_is_no_document_is_named(line: str) -> None:
    good = "".join(write([DocumentData("1", "a", {})], "jsonl"))
    with pytest.raises(ValueError, match="line 3 is no Document"):
        list(read_jsonl([good, "\n", line]))
