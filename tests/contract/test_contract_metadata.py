"""Metadata that every store takes, ids that hold, and pages that can be cited."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pymupdf
import pytest
from contract.stage import FIRST, PAGES, written_pdf
from support.metadata_contract import check_document

if TYPE_CHECKING:
    from contract.stage import Stage


def test_fault_44_values_are_flat_and_survive_json(stage: Stage) -> None:
    for seen in stage.load():
        metadata = dict(seen.metadata)
        assert all(type(key) is str for key in metadata)
        assert {type(value) for value in metadata.values()} <= {str, int, float, bool}, metadata
        assert json.loads(json.dumps(metadata, allow_nan=False)) == metadata


def test_fault_44_values_are_flat_with_layout_too(stage: Stage) -> None:
    stage.only("options")
    for seen in stage.load(layout=True):
        assert {type(value) for value in seen.metadata.values()} <= {str, int, float, bool}
        assert json.loads(seen.metadata["layout"])


@pytest.mark.parametrize("mode", ["page", "document", "element"])
def test_every_mode_keeps_the_rules_of_this_package(stage: Stage, mode: str) -> None:
    stage.only("options")
    got = stage.load(mode=mode, layout=True)
    assert len(got) == (1 if mode == "document" else PAGES)
    for seen in got:
        check_document(seen.text, seen.metadata, seen.id)


def test_fault_41_pages_are_numbered_by_the_file(stage: Stage) -> None:
    document = pymupdf.open(stream=written_pdf(range(4)))
    document.set_page_labels(
        [
            {"startpage": 0, "prefix": "", "style": "r", "firstpagenum": 1},
            {"startpage": 2, "prefix": "A-", "style": "D", "firstpagenum": 5},
        ]
    )
    path = stage.folder / "labels.pdf"
    document.save(path)
    labels = ["i", "ii", "A-5", "A-6"]
    metadata = [seen.metadata for seen in stage.load(path)]
    if stage.subject.framework == "langchain":
        assert [values["page"] for values in metadata] == [0, 1, 2, 3]
        assert {values["total_pages"] for values in metadata} == {4}
        for values in metadata:
            assert {"creationdate", "creator", "producer"} <= set(values)
        assert {values["source"] for values in metadata} == {str(path)}
    else:
        assert {values["file_name"] for values in metadata} == {"labels.pdf"}
    if stage.subject.framework == "llama-index" or stage.subject.options:
        assert [values["page_label"] for values in metadata] == labels


def test_fault_41_a_choice_of_pages_keeps_their_numbers(stage: Stage) -> None:
    stage.only("options")
    got = stage.load(pages="3,19-")
    assert [seen.metadata["page"] for seen in got] == [2, 18, 19]
    assert [seen.metadata["page_number"] for seen in got] == [3, 19, 20]
    assert {seen.metadata["total_pages"] for seen in got} == {PAGES}
    assert [seen.id for seen in got] == [stage.load()[index].id for index in (2, 18, 19)]


def test_fault_46_every_document_has_an_id_of_its_own(stage: Stage) -> None:
    ids = [seen.id for seen in stage.load()]
    assert all(type(key) is str and key for key in ids), ids
    assert len(set(ids)) == PAGES


def test_fault_46_pages_with_the_same_text_have_different_ids(stage: Stage) -> None:
    path = stage.folder / "twins.pdf"
    path.write_bytes(written_pdf([7, 7, 7]))
    got = stage.load(path)
    assert len({seen.text for seen in got}) == 1
    assert None not in {seen.id for seen in got}
    assert len({seen.id for seen in got}) == 3


def test_fault_46_other_files_have_other_ids(stage: Stage) -> None:
    other = stage.folder / "other" / "paper.pdf"
    other.parent.mkdir()
    other.write_bytes(written_pdf(range(FIRST + 1, FIRST + 1 + PAGES)))
    ids = {seen.id for seen in [*stage.load(), *stage.load(other)]}
    assert None not in ids
    assert len(ids) == 2 * PAGES


def test_fault_46_the_source_is_told_apart_where_names_are_alike(stage: Stage) -> None:
    other = stage.folder / "other" / "paper.pdf"
    other.parent.mkdir()
    shutil.copy(stage.pdf, other)
    key = "source" if stage.subject.framework == "langchain" else "file_path"
    assert {seen.metadata[key] for seen in stage.load()} == {str(stage.pdf)}
    assert {seen.metadata[key] for seen in stage.load(other)} == {str(other)}


def test_fault_47_extra_info_is_merged_and_left_alone(stage: Stage) -> None:
    stage.only("llama-index")
    given = {"department": "law", "file_name": "as I say.pdf"}
    before = dict(given)
    made = stage.make()
    documents = made.load_data(stage.pdf, extra_info=given)
    assert given == before
    assert len(documents) == PAGES
    for document in documents:
        assert document.metadata["department"] == "law"
        assert document.metadata["file_name"] == "as I say.pdf"
    documents[0].metadata["department"] = "tax"
    assert documents[1].metadata["department"] == "law"


def test_fault_47_excluded_keys_belong_to_one_document(stage: Stage) -> None:
    stage.only("llama-index")
    first, second = stage.subject.load(stage.make(), stage.pdf)[:2]
    for keys in ("excluded_embed_metadata_keys", "excluded_llm_metadata_keys"):
        mine: Any = getattr(first, keys)
        mine.append("mine")
        assert "mine" not in getattr(second, keys)


def test_a_blank_page_keeps_its_place(stage: Stage) -> None:
    document = pymupdf.open(stream=written_pdf([1, 2]))
    document.new_page(pno=1, width=260, height=390)
    path = stage.folder / "blank.pdf"
    document.save(path)
    got = stage.load(path)
    assert len(got) == 3
    assert stage.numbers(stage.lazy(path=path)) == [1, 2]
    assert got[1].text.strip() == ""
