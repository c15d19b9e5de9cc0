"""The grammar of the answers, and its damage."""

from __future__ import annotations

import inspect
import pickle
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from support.answers import TAGS, block, det, real_pages, ref, squeezed

from deepseek_ocr_loaders import markup
from deepseek_ocr_loaders.markup import parse
from deepseek_ocr_loaders.page import Block, Box
from deepseek_ocr_loaders.prompts import locate

if TYPE_CHECKING:
    from pathlib import Path


def only(raw: str, prompt: str = "markdown") -> Block:
    (found,) = parse(raw, prompt=prompt)
    return found


def texts(raw: str, prompt: str = "markdown") -> list[tuple[str | None, str]]:
    return [(found.label, found.text) for found in parse(raw, prompt=prompt)]


# --- the grammar --------------------------------------------------------------------------


def test_a_block_has_label_box_and_text() -> None:
    found = only(f"{ref('title')}{det('[[205, 132, 790, 157]]')}\n# Head  \n\n")
    assert found == Block("title", "# Head", (Box(205, 132, 790, 157),))


def test_an_answer_without_tags_is_one_block() -> None:
    assert parse("    code\n\nA  \n\nB\n", prompt="free") == (Block(None, "    code\n\nA  \n\nB"),)


@pytest.mark.parametrize("raw", ["", " \n\n", "<｜end▁of▁sentence｜>"])
def test_nothing_gives_no_block(raw: str) -> None:
    assert parse(raw) == ()


def test_real_output_has_174_blocks_with_their_labels_and_boxes() -> None:
    pages = [parse(page) for page in real_pages()]
    blocks = list(chain.from_iterable(pages))
    labels = Counter(found.label for found in blocks)
    assert len(pages) == 22
    assert labels == {
        "equation": 2,
        "image": 15,
        "image_caption": 15,
        "sub_title": 19,
        "table": 4,
        "table_caption": 3,
        "text": 104,
        "title": 12,
    }
    assert all(len(found.boxes) == 1 and not found.flags for found in blocks)


def test_real_output_text_in_is_text_out() -> None:
    for page in real_pages():
        parsed = parse(page)
        assert squeezed("".join(found.text for found in parsed)) == squeezed(TAGS.sub("", page))
        # Byte for byte within a block: each stands in the answer as it is.
        assert all(found.text in page for found in parsed)


# --- FAULTS 1: junk in coordinates --------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "box"),
    [
        ("[[40, k 61, 900, 88]]", Box(40, 61, 900, 88)),
        ("[[40, - 61, 900, 88]]", Box(40, 61, 900, 88)),
        ("[[40, 61, - , 900, 88]]", Box(40, 61, 900, 88)),
        ("[[- 40, 61, 900, 88]]", Box(40, 61, 900, 88)),
        ("[[40-, 61, 900, 88]]", Box(40, 61, 900, 88)),
        ("[[01,2,3,4]]", Box(1, 2, 3, 4)),
        ("[[40.5, 61.25, 900.0, 88]]", Box(40, 61, 900, 88)),
        ("[[40 61 900 88]]", Box(40, 61, 900, 88)),
        ("[[40, 61, 900, 88,]]", Box(40, 61, 900, 88)),
        ("40, 61, 900, 88", Box(40, 61, 900, 88)),
        ("[[40, 61, 900, 88]", Box(40, 61, 900, 88)),
        ("[40, 61, 900, 88]]", Box(40, 61, 900, 88)),
        ("[[__import__('pathlib').Path('PWNED').touch()]]", None),
        ("[[1,2,3,__import__('os').getpid()]]", None),
        ("[[0x10, 1, 2, 3]]", None),
        ("[[1e5, 1, 2, 3]]", None),
        (f"[[{'9' * 5000}, 2, 3, 4]]", None),
        ("[[12345, 2, 3, 4]]", None),
        ("[[a, b, c, d]]", None),
        ("[['40', '61', '900', '88']]", Box(40, 61, 900, 88)),
        ("[[40, 61, 900, \uff18\uff18]]", None),
        ("[[nan, inf, 1, 2]]", None),
        ("[[]]", None),
        ("[", None),
        ("]", None),
        ("null", None),
    ],
)
def test_fault_01_junk_in_coordinates_costs_at_most_the_box(
    payload: str, box: Box | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = only(f"{ref('text')}{det(payload)}\nAlpha line_type")
    assert (found.label, found.text) == ("text", "Alpha line_type")
    assert found.boxes == (() if box is None else (box,))
    if box is None:
        assert {"bad_box", "no_box"} & set(found.flags)
    assert list(tmp_path.iterdir()) == []


def test_fault_01_a_lone_dash_never_becomes_a_sign() -> None:
    for dash in ("- 61", "-  61", "61 -", "-\t61"):
        found = only(f"{ref('text')}{det(f'[[40, {dash}, 900, 88]]')}\nBeta")
        assert found.boxes == (Box(40, 61, 900, 88),)
        assert "repaired_box" in found.flags


def test_fault_01_nothing_is_evaluated() -> None:
    source = inspect.getsource(markup)
    assert "eval(" not in source
    assert "import ast" not in source


# --- FAULTS 2: boxes at and beyond the edge -------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "box", "flag"),
    [
        ("[[500,500,200,800]]", Box(200, 500, 500, 800), "reversed_box"),
        ("[[200,800,500,500]]", Box(200, 500, 500, 800), "reversed_box"),
        ("[[300,300,300,600]]", Box(300, 300, 300, 600), "empty_box"),
        ("[[990,10,1200,40]]", Box(990, 10, 999, 40), "clamped_box"),
        ("[[-5,0,10,10]]", Box(0, 0, 10, 10), "clamped_box"),
        ("[[9999,9999,9999,9999]]", Box(999, 999, 999, 999), "empty_box"),
    ],
)
def test_fault_02_boxes_are_sorted_clamped_and_flagged(payload: str, box: Box, flag: str) -> None:
    found = only(f"{ref('text')}{det(payload)}\nkept")
    assert found.boxes == (box,)
    assert flag in found.flags
    assert found.text == "kept"


def test_fault_02_pixels_are_scaled_by_999_on_each_axis() -> None:
    found = only(f"{ref('text')}{det('[[60, 850, 240, 960]]')}\nx")
    assert found.boxes[0].pixels(1200, 400) == (72, 340, 288, 384)
    assert Box(0, 0, 999, 999).pixels(1280, 1920) == (0, 0, 1280, 1920)


# --- FAULTS 3: text without a tag, tags without a text --------------------------------------


def test_fault_03_each_character_lands_in_one_block_in_order() -> None:
    raw = (
        "Preamble line\n\n"
        f"{ref('table')}{det('[[100,200,900,700]]')}\n"
        f"{ref('table_caption')}{det('[[100,90,900,190]]')}\n"
        "Table 1 | totals\n\n<table><tr><td>a</td></tr></table>\nTrailing line"
    )
    preamble, table, caption = parse(raw)
    assert preamble == Block(None, "Preamble line")
    assert table == Block("table", "", (Box(100, 200, 900, 700),))
    assert caption.label == "table_caption"
    assert caption.text == ("Table 1 | totals\n\n<table><tr><td>a</td></tr></table>\nTrailing line")


def test_fault_03_a_tag_without_text_does_not_take_its_neighbours() -> None:
    raw = (
        block("image", (1, 2, 3, 4))
        + block("image", (5, 6, 7, 8))
        + block("text", (9, 9, 9, 9), "T")
    )
    assert texts(raw) == [("image", ""), ("image", ""), ("text", "T")]


def test_fault_03_text_around_and_between_tags_is_kept() -> None:
    raw = f"before {ref('text')}{det('[[1,2,3,4]]')} same line\n\nmore\n{det('[[5,6,7,8]]')}after"
    assert texts(raw) == [(None, "before"), ("text", "same line\n\nmore"), (None, "after")]


# --- FAULTS 4: variants ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            f"{ref('dog')}{det('[[10,10,50,50],[60,60,90,90]]')}",
            Block("dog", "", (Box(10, 10, 50, 50), Box(60, 60, 90, 90))),
        ),
        (
            f"{ref('dog')}{det('[[10,10,50,50]]')}{det('[[60,60,90,90]]')}",
            Block("dog", "", (Box(10, 10, 50, 50), Box(60, 60, 90, 90))),
        ),
        (
            f"{ref('dog')}{det('[10,10,50,50], [60,60,90,90]')}",
            Block("dog", "", (Box(10, 10, 50, 50), Box(60, 60, 90, 90))),
        ),
        (
            f"{ref('title')}{det('[[[0,0,500,50]]]')}Heading",
            Block("title", "Heading", (Box(0, 0, 500, 50),)),
        ),
        (
            f"{ref('title')}{det('[0,0,500,50]')}Heading",
            Block("title", "Heading", (Box(0, 0, 500, 50),)),
        ),
        (
            "<|det|>title [61, 33, 902, 58]<|/det|>Quarterly note",
            Block("title", "Quarterly note", (Box(61, 33, 902, 58),)),
        ),
        (f"{det('[[1,2,3]]')}x", Block(None, "x", (), ("bad_box",))),
        (
            f"{ref('text')}<|det|>[Harbour]] lights",
            Block("text", "[Harbour]] lights", (), ("unclosed_det", "bad_box")),
        ),
        (
            # What is left of a label or of coordinates is no text.
            f"{ref('text')}<|det|>sub_title[[1,2,3,number]]\nHi",
            Block("text", "Hi", (), ("unclosed_det", "bad_box")),
        ),
        (f"{det('[[0,10,10,50,50]]')}x", Block(None, "x", (), ("bad_box",))),
        (f"{det('')}x", Block(None, "x", (), ("no_box",))),
        (f"{det('[[1,2,3,4]]')}x", Block(None, "x", (Box(1, 2, 3, 4),))),
        (f"{ref('text')}\nx", Block("text", "x")),
        (
            f"{ref(' Sub Title ')}{det('[[1,2,3,4]]')}\nx",
            Block("sub_title", "x", (Box(1, 2, 3, 4),)),
        ),
        (
            f"{ref('dog')}{det('[[1,2,3],[60,60,90,90]]')}",
            Block("dog", "", (Box(60, 60, 90, 90),), ("bad_box",)),
        ),
        (
            f"{ref('text')} \n {det('[[1,2,3,4]]')}\nx",
            Block("text", "x", (Box(1, 2, 3, 4),)),
        ),
    ],
)
def test_fault_04_variants_of_the_grammar_give_the_same_blocks(raw: str, expected: Block) -> None:
    assert only(raw) == expected


@pytest.mark.parametrize(
    "raw",
    [
        "<|ref|>text<|det|>[[1,2,3,4]]<|/det|>\nBody",
        "<|ref|>text</ref|><|det|>[[1,2,3,4]]<|/det|>\nBody",
        "<|ref|>text<|/ref|><|det|>[[1,2,3,4]]\nBody",
        "<|ref|>text<|/ref|><|det|>[[1,2,3,4]]</det|>\nBody",
        "<|ref|>text<|/ref|><|det|>[[1,2,3,4]]<|/det\nBody",
        "<|ref|>text<|/ref|><|det|>[[1,2,3,4]\nBody",
        "<|ref|>text<|/ref|>[[1,2,3,4]]<|/det|>\nBody",
        "<|ref|>text<|/ref|>[[1,2,3,4]]\nBody",
        "text<|/ref|><|det|>[[1,2,3,4]]<|/det|>\nBody",
        "ref|>text<|/ref|><|det|>[[1,2,3,4]]<|/det|>\nBody",
        "<|det|>text[[1,2,3,4]]<|/det|>\nBody",
    ],
)
def test_fault_04_missing_and_damaged_tags_cost_nothing(raw: str) -> None:
    found = only(raw)
    assert (found.label, found.text, found.boxes) == ("text", "Body", (Box(1, 2, 3, 4),))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("A<|/ref|>B", "AB"),
        ("A<|/det|>B", "AB"),
        ("A<|ref|><|/ref|>B", "AB"),
        (
            "<|ref|>Some words that no closer follows\nBody",
            "Some words that no closer follows\nBody",
        ),
        ("<|det|>Words in a det that are no box<|/det|>Body", "Words in a det that are no boxBody"),
        ("<|ref|>text<|/ref|><|det|>[[40, 61\nBody [1] goes on", "Body [1] goes on"),
        ("<|ref|>text<|/ref|><|det|>[[40, 61, 900, 88]]\nBody\n<|/det|>tail", "Body\ntail"),
        ("<|ref|>text<|/ref|><|det|>[[40, 61 Body text\nMore<|/det|>", "Body text\nMore"),
        ("<|det|>\n\n[[see note 1, 2, 3, 4]]\nBody", "[[see note 1, 2, 3, 4]]\nBody"),
        ("<|det|>\n[[1, 2, 3, 4]]\nBody", "Body"),
        ("<|det|>[[1, 2\nsome words, 3, 4]]<|/det|>\nBody", "some words, 3, 4]]\nBody"),
        ("A<|<|/ref|>/ref|>B<|<|/det|>det|>C", "ABC"),
        ("<|det|>[[1,2,3,4]]\nsee [1] there<|/det|>\nBody", "see [1] there\nBody"),
        ("<|det|>[[1,2,3,4]] see [1,2] and [3]<|/det|>", "see [1,2] and [3]"),
        ("x <| y |> z", "x <| y |> z"),
        ("List.map f <| xs", "List.map f <| xs"),
    ],
)
def test_fault_04_text_near_broken_tags_is_kept(raw: str, expected: str) -> None:
    said = "".join(found.text for found in parse(raw))
    assert squeezed(said) == squeezed(expected)


@pytest.mark.parametrize(
    "cut", ["<|r", "<|re", "<|ref", "<|ref|", "<|/", "<|/d", "<|/det|", "<|det"]
)
def test_fault_04_debris_of_a_cut_tag_at_the_end_is_no_text(cut: str) -> None:
    assert texts(f"Body\n{cut}") == [(None, "Body")]


def test_fault_04_unknown_labels_are_labels() -> None:
    for label in ("page_number", "marginalia", "hand-written", "figure2"):
        assert only(block(label, (1, 2, 3, 4), "x")).label == label


# --- tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inside",
    [
        "a\n\n\n\nb",
        "text[[1, 2, 3, 4]]\nb",
        f"{ref('text')}{det('[[1,2,3,4]]')}cell",
        "<|ref|>cell",
        "<|det|>[[1,2,3,4]]<|/det|>cell",
        "# no heading",
        "<table><tr><td>inner</td></tr></table>",
        "<--- Page Split --->",
    ],
)
def test_tables_stay_one_block_whatever_is_in_them(inside: str) -> None:
    table = f"<table><tr><td>{inside}</td></tr></table>"
    raw = block("table", (1, 2, 3, 4), table) + block("text", (5, 6, 7, 8), "after")
    first, second = parse(raw)
    assert first.label == "table"
    assert first.boxes == (Box(1, 2, 3, 4),)
    assert first.text.startswith("<table>")
    assert first.text.endswith("</table>")
    assert squeezed(TAGS.sub("", inside)).removeprefix("<|ref|>") in squeezed(first.text)
    assert (second.label, second.text) == ("text", "after")


def test_a_table_that_never_ends_does_not_swallow_what_follows() -> None:
    raw = block("table", (1, 2, 3, 4), "<table><tr><td>a") + block(
        "table", (5, 6, 7, 8), "<table><tr><td>b</td></tr></table>"
    )
    assert [found.boxes for found in parse(raw)] == [(Box(1, 2, 3, 4),), (Box(5, 6, 7, 8),)]


# --- FAULTS 6: stripped tokens --------------------------------------------------------------


def test_fault_06_bare_labels_are_read_where_the_tokens_were_stripped() -> None:
    raw = "text[[40, 61, 900, 88]]\nAlpha\n\ntitle[[40,10,900,40]]\n# Head"
    first, second = parse(raw)
    assert first == Block("text", "Alpha", (Box(40, 61, 900, 88),), ("bare_tag",))
    assert second == Block("title", "# Head", (Box(40, 10, 900, 40),), ("bare_tag",))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("text[[1,2,3,4]]Same line", [("text", "Same line")]),
        (
            "Lead\ntable [[1, 2, 3, 4],[5,6,7,8]]\n<table></table>",
            [(None, "Lead"), ("table", "<table></table>")],
        ),
        (
            "image[[1,2,3,4]]\nimage_caption[[1,2,3,4]]\nFig",
            [("image", ""), ("image_caption", "Fig")],
        ),
        ("see text[[1, 2]]\nand [[note]]", [(None, "see text[[1, 2]]\nand [[note]]")]),
        ("x = [[1, 2, 3, 4]]", [(None, "x = [[1, 2, 3, 4]]")]),
    ],
)
def test_fault_06_bare_labels_in_other_shapes(
    raw: str, expected: list[tuple[str | None, str]]
) -> None:
    assert texts(raw) == expected


def test_fault_06_a_document_that_prints_the_format_is_left_alone() -> None:
    raw = "text[[40, 61, 900, 88]]\nAlpha"
    assert texts(raw, "free") == [(None, raw)]
    tagged = block("text", (1, 2, 3, 4), raw)
    assert texts(tagged) == [("text", raw)]


# --- FAULTS 10: leaked tokens ---------------------------------------------------------------


@pytest.mark.parametrize(
    "token",
    [
        "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜>",
        "<｜▁pad▁｜>",
        "<｜User｜>",
        "<｜tool▁calls▁end｜>",
    ],
)
def test_fault_10_leaked_tokens_are_removed_anywhere(token: str) -> None:
    assert texts(f"{token}Al{token}pha{token}", "free") == [(None, "Alpha")]
    raw = f"{token}<|ref|>te{token}xt<|/ref|><|det|>[[1, {token}2, 3, 4]]{token}<|/det|>\nA{token}"
    assert parse(raw) == (Block("text", "A", (Box(1, 2, 3, 4),)),)


@pytest.mark.parametrize(
    "own", ["<|im_end|>", "<|endoftext|>", "<|grounding|>", "<image>", "<｜中文｜>", "a ｜ b"]
)
def test_fault_10_tokens_that_the_document_prints_are_text(own: str) -> None:
    assert texts(block("code", (1, 2, 3, 4), f"x {own} y")) == [("code", f"x {own} y")]


# --- FAULTS 12: text in the ref -------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["ocr", locate("sum"), "<|grounding|>Read the signs."])
@pytest.mark.parametrize(
    "said",
    ["合計 [[税込]] (1) <b>", "مرحبا [1]", "Total: 12,50 €", "some text", "WARD", "x < y | z"],
)
def test_fault_12_a_ref_holds_the_text_of_the_page(said: str, prompt: str) -> None:
    raw = f"{ref(said)}{det('[[1,2,3,4]]')}\n" * 2
    assert parse(raw, prompt=prompt) == (Block("text", said, (Box(1, 2, 3, 4),)),) * 2


@pytest.mark.parametrize("said", ["合計 [[税込]] (1) <b>", "مرحبا [1]", "Total: 12", "Ward office"])
def test_fault_12_a_ref_that_is_no_label_keeps_its_text_under_markdown(said: str) -> None:
    assert only(f"{ref(said)}{det('[[1,2,3,4]]')}") == Block(None, said, (Box(1, 2, 3, 4),))
    assert only(f"{ref(said)}{det('[[1,2,3,4]]')}\nmore").text == f"{said}\nmore"


def test_fault_12_words_of_the_page_that_look_like_labels_are_text_under_ocr() -> None:
    raw = "".join(f"{ref(word)}{det('[[1,2,3,4]]')}\n" for word in ("title", "page", "text"))
    assert texts(raw, "ocr") == [("text", "title"), ("text", "page"), ("text", "text")]


def test_fault_12_labels_are_labels_where_the_model_used_the_other_grammar() -> None:
    raw = block("title", (1, 2, 3, 4), "# Head") + block("text", (1, 2, 3, 4), "Body")
    assert texts(raw, "ocr") == [("title", "# Head"), ("text", "Body")]


def test_fault_12_stripped_tokens_under_ocr_keep_the_text() -> None:
    raw = "some text[[1,2,3,4]]\n合計 [1][[5,6,7,8]]\n"
    assert texts(raw, "ocr") == [("text", "some text"), ("text", "合計 [1]")]


def test_blocks_survive_pickling() -> None:
    found = parse(real_pages()[0])
    assert pickle.loads(pickle.dumps(found)) == found
