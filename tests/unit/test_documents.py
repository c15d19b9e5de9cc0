"""Documents: text, metadata and ids, in all modes."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.answers import (
    TAGS,
    block,
    det,
    failed_page,
    page_result,
    real_pages,
    ref,
    source_info,
    squeezed,
)
from support.metadata_contract import check_document

from deepseek_ocr_loaders.documents import (
    EXCLUDED_KEYS,
    DocumentBuilder,
    DocumentData,
    failed_source_document,
)
from deepseek_ocr_loaders.errors import RequestError, RequestTimeoutError, SourceError
from deepseek_ocr_loaders.page import PageResult, PageStatus, SourceInfo
from deepseek_ocr_loaders.settings import Settings

MODES = ("page", "document", "element")
OUTPUTS = ("markdown", "text", "raw")


def made(
    pages: list[PageResult], info: SourceInfo | None = None, **options: Any
) -> list[DocumentData]:
    builder = DocumentBuilder(info or source_info(total_pages=len(pages)), Settings.create(options))
    documents = [document for page in pages for document in builder.add(page)]
    documents += builder.finish()
    for document in documents:
        check_document(document.text, document.metadata, document.id)
    assert len({document.id for document in documents}) == len(documents)
    return documents


def real() -> list[PageResult]:
    return [page_result(raw, index) for index, raw in enumerate(real_pages())]


# --- modes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "output", "layout"), list(itertools.product(MODES, OUTPUTS, (False, True)))
)
def test_real_pages_keep_the_contract_in_all_modes(mode: str, output: str, layout: bool) -> None:
    documents = made(real(), mode=mode, output=output, layout=layout, tables="markdown")
    assert ("layout" in documents[0].metadata) is layout
    assert len(documents) == {"page": 22, "document": 1, "element": 156}[mode]


def test_in_page_mode_text_in_is_text_out() -> None:
    for raw, document in zip(real_pages(), made(real()), strict=True):
        assert squeezed(document.text) == squeezed(TAGS.sub("", raw))


def test_raw_is_what_the_model_said_byte_for_byte() -> None:
    for raw, document in zip(real_pages(), made(real(), output="raw"), strict=True):
        assert document.text == raw
    (whole,) = made(real(), output="raw", mode="document", page_separator="\f")
    assert whole.text.split("\f") == real_pages()


def test_document_mode_joins_the_pages() -> None:
    pages = [page_result("A", 0), page_result("", 1, status=PageStatus.BLANK), page_result("C", 2)]
    (whole,) = made(pages, mode="document", page_separator="\n\f")
    assert whole.text == "A\n\f\n\fC"
    assert whole.metadata["total_pages"] == 3
    assert not {"page", "page_number", "page_label", "width"} & set(whole.metadata)
    assert whole.metadata["ocr_pages"] == "ok 1,3; blank 2"
    assert whole.metadata["ocr_status"] == "ok"


def test_document_mode_summarises_statuses_engines_and_errors() -> None:
    pages = [
        page_result("A", 0),
        page_result("B", 1, engine="text_layer", model="pymupdf"),
        failed_page(RequestTimeoutError("no answer", source="x", page_number=3), 2),
        page_result("D", 3, finish_reason="length", prompt="free"),
    ]
    (whole,) = made(pages, mode="document")
    assert whole.metadata["ocr_status"] == "failed"
    assert whole.metadata["ocr_pages"] == "failed 3; truncated 4; ok 1-2"
    assert whole.metadata["ocr_error"] == "page 3: RequestTimeoutError: no answer"
    assert whole.metadata["ocr_engine"] == "text_layer, vllm"
    assert whole.metadata["ocr_model"] == "deepseek-ai/DeepSeek-OCR, pymupdf"
    assert "no answer" not in whole.text


def test_document_mode_without_pages_gives_nothing() -> None:
    assert made([], mode="document") == []


# --- elements -------------------------------------------------------------------------------


def test_elements_carry_type_index_headings_and_boxes() -> None:
    pages = [
        page_result(
            block("title", (10, 10, 500, 50), "# Guide")
            + block("text", (10, 60, 500, 90), "Hello")
            + block("sub_title", (10, 100, 500, 120), "## 1 Setup")
            + block("image", (10, 200, 500, 400))
            + block("image_caption", (10, 410, 500, 430), "<center>Figure 1 | x </center>"),
            0,
        ),
        page_result(
            f"{ref('table')}{det('[[1,2,3,4]]')}\n{ref('table_caption')}{det('[[5,6,7,8]]')}\n"
            "Table 1 | totals\n\n<table><tr><td>a</td></tr></table>",
            1,
        ),
    ]
    title, hello, setup, figure, table = made(pages, mode="element")
    assert [each.metadata["element_index"] for each in (title, hello, setup, figure, table)] == [
        0, 1, 2, 3, 0,
    ]  # fmt: skip
    assert [each.metadata["element_type"] for each in (title, hello, setup, figure, table)] == [
        "title", "text", "sub_title", "image", "table",
    ]  # fmt: skip
    assert "heading_path" not in title.metadata
    assert hello.metadata["heading_path"] == "Guide"
    assert figure.metadata["heading_path"] == "Guide > 1 Setup"
    assert figure.text == "<center>Figure 1 | x </center>"
    assert json.loads(str(figure.metadata["boxes"])) == [[10, 200, 500, 400], [10, 410, 500, 430]]
    assert json.loads(str(hello.metadata["pixel_boxes"])) == [[13, 115, 641, 173]]
    assert table.metadata["heading_path"] == "Guide > 1 Setup"
    assert table.metadata["page"] == 1
    assert table.text == "Table 1 | totals\n\n<table><tr><td>a</td></tr></table>"


def test_fault_03_in_element_mode_nothing_is_lost_either() -> None:
    for page in real():
        elements = made([page], info=source_info(), mode="element")
        said = "".join(each.text for each in elements)
        assert squeezed(said) == squeezed(TAGS.sub("", page.raw))


def test_fault_12_a_table_is_an_element_of_its_own_however_long() -> None:
    rows = "".join(f"<tr><td>r{n}</td><td>{n * n}</td></tr>" for n in range(60))
    raw = block("text", (1, 1, 9, 9), "Before") + block(
        "table", (1, 10, 9, 900), f"<table>{rows}</table>"
    )
    before, table = made([page_result(raw)], mode="element")
    assert before.text == "Before"
    assert table.metadata["element_type"] == "table"
    assert table.text.count("<tr>") == table.text.count("</tr>") == 60


def test_furniture_and_pictures_without_text_give_no_element() -> None:
    raw = (
        block("header", (1, 1, 2, 2), "H")
        + block("image", (1, 1, 500, 500))
        + block("text", (1, 1, 2, 2), "T")
        + block("page_number", (1, 1, 2, 2), "7")
    )
    assert [each.text for each in made([page_result(raw)], mode="element")] == ["H", "T", "7"]
    dropped = made([page_result(raw)], mode="element", furniture="drop")
    assert [each.text for each in dropped] == ["T"]
    assert made([page_result(raw)], furniture="drop")[0].text == "T"
    marked = made([page_result(raw)], mode="element", images="placeholder")
    assert [each.text for each in marked] == ["H", "<!-- image -->", "T", "7"]


def test_saved_pictures_are_linked_with_their_caption() -> None:
    page = page_result(
        block("image", (1, 1, 500, 500)) + block("image_caption", (1, 510, 500, 520), "Fig. 1")
    )
    picture, caption = page.blocks
    page = dataclasses.replace(page, blocks=(dataclasses.replace(picture, image="p.png"), caption))
    for mode in MODES:
        (document,) = made([page], mode=mode, images="save", image_dir="pictures")
        assert document.text == "![Fig. 1](pictures/p.png)\n\nFig. 1"


@pytest.mark.parametrize(
    ("raw", "reason", "status"),
    [
        ("", "stop", "empty"),
        ("Body\n<|re", "length", "truncated"),
        ("<|ref|>te", "length", "truncated"),
    ],
)
def test_fault_42_a_page_that_did_not_go_well_is_seen_in_every_mode(
    raw: str, reason: str, status: str
) -> None:
    for mode in MODES:
        (document,) = made([page_result(raw, finish_reason=reason)], mode=mode)
        assert document.metadata["ocr_status"] == status


def test_a_blank_page_is_a_document_but_no_element() -> None:
    blank = PageResult(index=0, label="1", width=10, height=10, status=PageStatus.BLANK)
    (document,) = made([blank])
    assert (document.text, document.metadata["ocr_status"]) == ("", "blank")
    assert not {"ocr_engine", "ocr_model"} & set(document.metadata)
    assert made([blank], mode="element") == []


# --- FAULTS 6 -------------------------------------------------------------------------------


def test_fault_06_missing_boxes_are_flagged_in_the_metadata() -> None:
    (without,) = made([page_result("Just text")])
    assert without.metadata["ocr_grounded"] is False
    (with_boxes,) = made([page_result(block("text", (1, 2, 3, 4), "x"))])
    assert "ocr_grounded" not in with_boxes.metadata


# --- FAULTS 41: page numbers ----------------------------------------------------------------


def test_fault_41_page_numbers_come_from_the_document_never_from_its_text() -> None:
    labels = ("i", "ii", "A-5", "1")
    raw = f"{ref('title')}{det('[[430,12,560,30]]')}\n# Page 7"
    pages = [page_result(raw, index, label=label) for index, label in enumerate(labels)]
    documents = made(pages)
    assert [each.metadata["page"] for each in documents] == [0, 1, 2, 3]
    assert [each.metadata["page_number"] for each in documents] == [1, 2, 3, 4]
    assert [each.metadata["page_label"] for each in documents] == list(labels)
    assert all(each.metadata["total_pages"] == 4 for each in documents)


def test_fault_41_page_zero_and_subsets_keep_their_numbers() -> None:
    (first,) = made([page_result("x", 0)])
    assert first.metadata["page"] == 0
    subset = made([page_result("x", 6), page_result("y", 20)], info=source_info())
    assert [each.metadata["page_number"] for each in subset] == [7, 21]
    assert [each.metadata["total_pages"] for each in subset] == [22, 22]
    (unlabelled,) = made([page_result("x", 4, label="")], info=source_info())
    assert unlabelled.metadata["page_label"] == "5"


# --- FAULTS 42: failed pages ----------------------------------------------------------------


def test_fault_42_a_failed_page_is_recorded_in_its_place() -> None:
    error = RequestError("the server said 500", source="x.pdf", page_number=2, attempts=4)
    for mode in ("page", "element"):
        pages = [page_result("A", 0), failed_page(error, 1), page_result("C", 2)]
        documents = made(pages, mode=mode)
        assert [each.metadata["page"] for each in documents] == [0, 1, 2]
        assert [each.text for each in documents] == ["A", "", "C"]
        assert documents[1].metadata["ocr_status"] == "failed"
        assert documents[1].metadata["ocr_error"] == "RequestError: the server said 500"
        assert "element_type" not in documents[1].metadata


@pytest.mark.parametrize(
    ("message", "absent"),
    [
        ("http://user:geheim@host:8000/v1/chat?key=geheim failed", "geheim"),
        ("s3://bucket/x.pdf?X-Amz-Signature=geheim: denied", "geheim"),
        ("401: Authorization: Bearer geheim-1234", "geheim"),
        ("api_key=geheim is wrong", "geheim"),
        ("the key sk-geheim12345 is wrong", "geheim"),
        ("connection to http://127.0.0.1:43121/v1 refused", "43121"),
        ("connection to 127.0.0.1:43121 refused", "43121"),
        ("first line\nsecond\x00 line\ud800", "\n"),
        ("x" * 5000, "x" * 400),
    ],
)
def test_fault_42_the_error_is_one_short_line_without_secrets_or_ports(
    message: str, absent: str
) -> None:
    (document,) = made([failed_page(RequestError(message, source="x", page_number=1))])
    said = str(document.metadata["ocr_error"])
    assert said.startswith("RequestError: ")
    assert absent not in said
    assert len(said) <= 300


def test_fault_42_a_source_that_cannot_be_opened_is_recorded() -> None:
    error = SourceError("folder/x.pdf cannot be opened", source="folder/x.pdf")
    document = failed_source_document("folder/x.pdf", error)
    check_document(document.text, document.metadata, document.id)
    assert document.text == ""
    assert document.metadata["file_name"] == "x.pdf"
    assert document.id == failed_source_document("folder/x.pdf", error).id
    assert document.id != failed_source_document("folder/y.pdf", error).id


# --- FAULTS 43: length ----------------------------------------------------------------------


def test_fault_43_what_is_long_is_excluded_from_both_views() -> None:
    raw = "".join(block("text", (n, n, n + 9, n + 9), f"Words {n} of {n * n}") for n in range(400))
    info = source_info(source="/".join(["folder"] * 30) + "/x.pdf", file_name="x.pdf")
    info = dataclasses.replace(info, properties={"title": "T " * 900, "keywords": "k " * 900})
    for mode in MODES:
        for document in made([page_result(raw)], info=info, mode=mode, layout=True):
            shown = [
                f"{key}: {value}"
                for key, value in document.metadata.items()
                if key not in EXCLUDED_KEYS
            ]
            assert len("\n".join(shown)) < 250
            assert all(
                len(str(document.metadata.get(key, ""))) <= 500 for key in ("title", "keywords")
            )


def test_fault_43_the_excluded_keys_are_keys_that_exist() -> None:
    documents = [
        *made([page_result(block("text", (1, 2, 3, 4), "x"))], layout=True, mode="element"),
        *made([failed_page(RequestError("x", source="x", page_number=1))]),
        *made([page_result("a"), page_result("", 1)], mode="document"),
    ]
    info = source_info(
        properties=dict.fromkeys(("title", "author", "subject", "keywords", "moddate"), "v")
    )
    documents += made([page_result("a")], info=info)
    seen = {key for document in documents for key in document.metadata}
    assert set(EXCLUDED_KEYS) <= seen
    assert seen - set(EXCLUDED_KEYS) == {"file_name", "page_label", "element_type"}


# --- FAULTS 44: what stores take --------------------------------------------------------------

nasty = st.text(
    st.one_of(st.characters(), st.sampled_from("\x00\x07\n\r\x1b\x7f\x85\u2028\ud800\udfff")),
    max_size=30,
)


@given(st.tuples(nasty, nasty, nasty, nasty), st.sampled_from(MODES), st.sampled_from(OUTPUTS))
@settings(max_examples=150, deadline=None)
def test_fault_44_metadata_and_text_are_clean_whatever_the_file_says(
    said: tuple[str, str, str, str], mode: str, output: str
) -> None:
    name, title, label, text = said
    info = SourceInfo(
        source=f"a/{name}",
        file_name=name,
        content_hash="00" * 32,
        kind="pdf",
        total_pages=3,
        properties={"creationdate": title, "title": title, "author": ""},
    )
    raw = block("title", (1, 2, 3, 4), f"# {title}") + block("text", (5, 6, 7, 8), text)
    pages = [
        page_result(raw, 0, label=label, model=title),
        page_result(text, 1, prompt="free"),
        failed_page(RequestError(text, source=name, page_number=3), 2),
    ]
    for document in made(pages, info=info, mode=mode, output=output, layout=True):
        json.dumps(document.text).encode()


def test_fault_44_missing_values_are_missing_keys() -> None:
    info = source_info(properties={"title": "", "author": " \x00 "})
    (document,) = made([page_result("x", width=0, height=0)], info=info)
    assert document.metadata["creationdate"] == ""
    assert not {"title", "author", "subject", "moddate", "width", "rotation", "layout"} & set(
        document.metadata
    )


# --- FAULTS 46: ids ---------------------------------------------------------------------------


def test_fault_46_ids_and_metadata_are_the_same_on_every_load() -> None:
    for mode in MODES:
        assert made(real(), mode=mode, layout=True) == made(real(), mode=mode, layout=True)


def test_fault_46_ids_differ_between_files_pages_and_elements() -> None:
    same = [page_result("same text", 0), page_result("same text", 1)]
    one, two = made(same)
    assert one.id != two.id
    (other, _) = made(same, info=source_info(content_hash="cd" * 32, total_pages=2))
    assert other.id not in {one.id, two.id}
    assert len({each.id for mode in MODES for each in made(same, mode=mode)}) == 5


def test_fault_46_the_same_bytes_are_the_same_document_under_any_name() -> None:
    pages = [page_result("x")]
    (one,) = made(pages, info=source_info(source="a/x.pdf", total_pages=1))
    (two,) = made(pages, info=source_info(source="b/y.pdf", file_name="y.pdf", total_pages=1))
    assert one.id == two.id
    assert one.metadata["source"] != two.metadata["source"]


@pytest.mark.parametrize(
    "changed",
    [
        {"mode": "element"}, {"output": "text"}, {"tables": "markdown"}, {"math": "dollars"},
        {"images": "placeholder"}, {"images": "save", "image_dir": "p"}, {"furniture": "drop"},
        {"prompt": "free"}, {"ocr": "auto"}, {"detail": "low"}, {"dpi": 300}, {"rotate": 90},
        {"rotate": {1: 90}},
    ],
)  # fmt: skip
def test_fault_46_options_that_change_the_text_change_the_id(changed: dict[str, Any]) -> None:
    pages = [page_result(block("text", (1, 2, 3, 4), "x"))]
    assert made(pages)[0].id != made(pages, **changed)[0].id


@pytest.mark.parametrize(
    "changed",
    [
        {"layout": True},
        {"retries": 9},
        {"timeout": 1.0},
        {"base_url": "http://x:1"},
        {"model": "m"},
    ],
)
def test_fault_46_options_that_do_not_change_the_text_do_not_change_the_id(
    changed: dict[str, Any],
) -> None:
    pages = [page_result(block("text", (1, 2, 3, 4), "x"))]
    assert made(pages)[0].id == made(pages, **changed)[0].id


# --- layout -----------------------------------------------------------------------------------


def test_layout_gives_label_boxes_pixels_and_place() -> None:
    raw = block("title", (60, 850, 240, 960), "# Head") + block("image", (1, 2, 3, 4))
    (document,) = made([page_result(raw, width=1200, height=400)], layout=True)
    title, image = json.loads(str(document.metadata["layout"]))
    assert title == {
        "label": "title",
        "boxes": [[60, 850, 240, 960]],
        "pixels": [[72, 340, 288, 384]],
        "start": 0,
        "end": 6,
        "probe": "#",
    }
    assert "start" not in image


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("output", ["markdown", "raw"])
def test_layout_places_each_block_in_the_text(mode: str, output: str) -> None:
    said = [block.text for page in real() for block in page.blocks if block.text]
    placed = []
    for document in made(real(), mode=mode, output=output, layout=True):
        text = document.text
        entries = json.loads(str(document.metadata["layout"]))
        placed += [text[entry["start"] : entry["end"]] for entry in entries if "start" in entry]
        for entry in entries:
            if "start" in entry:
                first = -(-entry["start"] // 8) * 8
                assert entry["probe"] == text[first : entry["end"] : 8]
    assert placed == said


def test_layout_keeps_flags() -> None:
    (document,) = made([page_result(f"{ref('text')}{det('[[1,2,3]]')}\nx")], layout=True)
    (entry,) = json.loads(str(document.metadata["layout"]))
    assert entry["flags"] == ["bad_box"]
    assert re.search(r"\s", str(document.metadata["layout"])) is None
