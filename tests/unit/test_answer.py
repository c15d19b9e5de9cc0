"""Statuses: what became of an answer."""

from __future__ import annotations

import pytest
from support.answers import block, det, real_pages, ref, squeezed

from deepseek_ocr_loaders.answer import Answer, interpret
from deepseek_ocr_loaders.page import Block, Box, PageStatus


def cut(raw: str, prompt: str = "markdown") -> Answer:
    return interpret(raw, finish_reason="length", has_ink=True, prompt=prompt)


def said(answer: Answer) -> str:
    return "\n".join(found.text for found in answer.blocks)


def test_a_good_answer_is_ok() -> None:
    answer = interpret(real_pages()[0], finish_reason="stop", has_ink=True)
    assert answer.status is PageStatus.OK
    assert answer.grounded
    assert answer.text_kept == real_pages()[0]


# --- FAULTS 7 -------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["stop", "length", "repetition", None])
def test_fault_07_text_up_to_the_loop_is_kept(reason: str | None) -> None:
    answer = interpret("Intro\n" + "Ward office\n" * 1500, finish_reason=reason, has_ink=True)
    assert answer.status is PageStatus.REPETITION
    assert said(answer) == "Intro\nWard office"


def test_fault_07_a_loop_in_a_table_leaves_a_table() -> None:
    raw = block("text", (1, 2, 3, 4), "Intro") + ref("table") + det("[[1,2,3,4]]")
    answer = interpret(
        raw + "\n<table><tr>" + "<td></td>" * 3000, finish_reason="length", has_ink=True
    )
    assert [found.text for found in answer.blocks] == [
        "Intro",
        "<table><tr><td></td></tr></table>",
    ]


def test_fault_07_what_comes_after_a_loop_is_kept() -> None:
    raw = "Intro\n" + "Ward office\n" * 1500 + "Last words\n" + "-" * 4000 + "\nEnd."
    answer = interpret(raw, finish_reason="stop", has_ink=True)
    assert answer.status is PageStatus.REPETITION
    assert said(answer).split() == ["Intro", "Ward", "office", "Last", "words", "-", "End."]


def test_fault_07_the_servers_word_is_taken_where_no_loop_is_seen() -> None:
    answer = interpret("Intro and more", finish_reason="repetition", has_ink=True)
    assert answer.status is PageStatus.REPETITION
    assert said(answer) == "Intro and more"


def test_fault_07_a_page_of_honest_repetition_is_ok() -> None:
    for text in ("Closed\n" * 31, "<table>" + "<tr><td>-</td><td>-</td></tr>" * 40 + "</table>"):
        answer = interpret(text, finish_reason="stop", has_ink=True, prompt="free")
        assert answer.status is PageStatus.OK
        assert said(answer) == text.strip()


# --- FAULTS 9 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            f"Body one\n\n{ref('table')}{det('[[10,10,990,900]]')}\n<table><tr><td>Name</td><td>Qt",
            ["Body one", "<table><tr><td>Name</td><td>Qt</td></tr></table>"],
        ),
        ("Body\n<|ref|>text<|/ref|><|det|>[[10, 9", ["Body"]),
        ("Body\n<|ref|>text<|/ref|><|det|>", ["Body"]),
        ("Body\n<|ref|>text<|/ref|>", ["Body"]),
        ("Body\n<|ref|>text", ["Body"]),
        ("Body\n<|ref|>te", ["Body"]),
        ("Body\n<|ref|>", ["Body"]),
        ("Body\n<|re", ["Body"]),
        ("Body\n<|", ["Body"]),
        ("Body\n<", ["Body"]),
        ("Body\n<|ref|>text<|/ref|><|det|>[[1,2,3,4]]<|/de", ["Body"]),
        (f"Body\n{ref('text')}{det('[[1,2,3,4]]')}\nHalf a sen", ["Body", "Half a sen"]),
        ("where a <", ["where a <"]),
        (
            "<table><tr><td>a</td></tr><tr><td>b</td",
            ["<table><tr><td>a</td></tr><tr><td>b</td></tr></table>"],
        ),
        (
            "<table><tr><td>a</td></tr></table>\nAfter",
            ["<table><tr><td>a</td></tr></table>\nAfter"],
        ),
        ('<table><tr><td rowspan="2', ["<table><tr></tr></table>"]),
        ("text[[40, 61, 900, 88]]\nAlpha\n\ntitle[[40,10,9", ["Alpha"]),
    ],
)
def test_fault_09_a_cut_leaves_no_debris_and_loses_no_text(raw: str, expected: list[str]) -> None:
    answer = cut(raw)
    assert answer.status is PageStatus.TRUNCATED
    assert [found.text for found in answer.blocks if found.text] == expected


def test_fault_09_any_cut_of_a_real_page_leaves_a_beginning_of_its_text() -> None:
    for page in (real_pages()[0], real_pages()[5]):
        whole = squeezed(
            "".join(
                found.text for found in interpret(page, finish_reason="stop", has_ink=True).blocks
            )
        )
        for end in range(0, len(page), 3):
            answer = cut(page[:end])
            assert answer.status is PageStatus.TRUNCATED
            text = said(answer)
            assert "<|" not in text
            assert "|>" not in text
            assert all(found.boxes for found in answer.blocks)
            kept = squeezed(text)
            while kept and not whole.startswith(kept):
                # Only what closes a table may have been added.
                closed = next(
                    (tag for tag in ("</td>", "</tr>", "</table>") if kept.endswith(tag)), None
                )
                assert closed, kept[-80:]
                kept = kept.removesuffix(closed)


def test_fault_09_text_in_a_ref_is_kept_where_it_is_text() -> None:
    raw = f"{ref('first line')}{det('[[1,2,3,4]]')}\n<|ref|>second li"
    assert [found.text for found in cut(raw, "ocr").blocks] == ["first line", "second li"]
    raw = f"{ref('first line')}{det('[[1,2,3,4]]')}\n<|ref|>second line<|/ref|><|det|>[[1,"
    assert [found.text for found in cut(raw, "ocr").blocks] == ["first line", "second line"]


def test_fault_09_a_nest_of_open_tables_is_kept_as_it_is() -> None:
    raw = "<table><tr><td>" * 20 + "x"
    assert said(cut(raw)) == raw


# --- FAULTS 10 ------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [None, "", "\n \n", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>" * 50])
def test_fault_10_no_text_is_empty_on_a_page_with_ink_and_ok_on_a_white_one(
    raw: str | None,
) -> None:
    inked = interpret(raw, finish_reason="stop", has_ink=True)
    white = interpret(raw, finish_reason="stop", has_ink=False)
    assert (inked.status, white.status) == (PageStatus.EMPTY, PageStatus.OK)
    assert inked.blocks == white.blocks == ()


def test_fault_10_tags_without_text_are_empty() -> None:
    raw = block("text", (1, 2, 3, 4))
    assert interpret(raw, finish_reason="stop", has_ink=True).status is PageStatus.EMPTY


def test_fault_10_a_page_that_is_one_picture_is_not_empty() -> None:
    answer = interpret(block("image", (0, 0, 999, 999)), finish_reason="stop", has_ink=True)
    assert answer.status is PageStatus.OK
    assert answer.blocks == (Block("image", "", (Box(0, 0, 999, 999),)),)


def test_fault_10_a_leaked_token_inside_a_word_is_taken_out() -> None:
    answer = interpret("Al<｜end▁of▁sentence｜>pha", finish_reason="stop", has_ink=True)
    assert said(answer) == "Alpha"
    kept = interpret("`<|im_end|>`", finish_reason="stop", has_ink=True)
    assert said(kept) == "`<|im_end|>`"


# --- FAULTS 6 -------------------------------------------------------------------------------


def test_fault_06_an_answer_without_the_tags_that_were_asked_for_is_flagged() -> None:
    assert not interpret("Just text", finish_reason="stop", has_ink=True).grounded
    assert not interpret("Just text", finish_reason="stop", has_ink=True, prompt="ocr").grounded
    assert interpret("Just text", finish_reason="stop", has_ink=True, prompt="free").grounded
    assert interpret("", finish_reason="stop", has_ink=True).grounded
    assert interpret("text[[1,2,3,4]]\nA", finish_reason="stop", has_ink=True).grounded
