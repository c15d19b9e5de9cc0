"""`output`, `tables`, `math`, `images`, `furniture`: how a block becomes text."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import TAGS, block, page_result, real_pages, squeezed

from deepseek_ocr_loaders.page import Block
from deepseek_ocr_loaders.plain_text import to_plain_text
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.text import block_text, clean, clean_line, is_furniture

_MARKUP_WORDS = {"table", "center", "rowspan", "colspan"}
MATHS = r"Share \(\mathbf{p}_{k}<12\,\%\) and \[x^{2}+\tfrac{1}{3}\]"


def told(**options: Any) -> Settings:
    return Settings.create(options)


def shown(text: str, label: str = "text", **options: Any) -> str:
    return block_text(Block(label, text), told(**options))


# --- FAULTS 12 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        MATHS,
        r"\[\begin{array}{c} a \\ b \end{array}\]",
        r"A \coloneqq B, \\(not maths\\), \$5, C:\new\table",
        "<center>Figure 1 | x</center>",
        "<table><tr><td>\\(x\\)</td></tr></table>",
        "**bold** _it_ `code` &amp; <b>",
    ],
)
def test_fault_12_text_is_byte_for_byte_by_default(text: str) -> None:
    assert shown(text) == text
    assert json.loads(json.dumps(shown(text))) == text


def test_fault_12_real_output_is_byte_for_byte_by_default() -> None:
    for page in real_pages():
        made = "".join(block_text(each, told()) for each in page_result(page).blocks)
        assert squeezed(made) == squeezed(TAGS.sub("", page))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MATHS, r"Share $\mathbf{p}_{k}<12\,\%$ and $$x^{2}+\tfrac{1}{3}$$"),
        (r"\( x \)", "$x$"),
        (r"\[ x \coloneqq 1 \eqqcolon y \]", "$$x := 1 =: y$$"),
        (r"a \coloneqq b", r"a \coloneqq b"),
        (r"\(x\) and \(y", r"$x$ and \(y"),
        (r"\(x \[y\]", r"\(x $$y$$"),
        (r"\(a \\ (b)\)", r"$a \\ (b)$"),
        (r"\[a \\[2pt] b\]", r"$$a \\[2pt] b$$"),
        ("costs $5", "costs $5"),
    ],
)
def test_fault_12_dollars_on_request(text: str, expected: str) -> None:
    assert shown(text, math="dollars") == expected


def test_tables_on_request_as_pipe_tables() -> None:
    table = "<table><tr><td>a</td></tr><tr><td>b</td></tr></table>"
    pipe = "| a |\n| --- |\n| b |"
    assert shown(table, tables="markdown") == pipe
    assert shown(f"Table 1\n\n{table}\nNote", tables="markdown") == f"Table 1\n\n{pipe}\n\nNote"
    assert shown(f"{table}{table}", tables="markdown") == f"{pipe}\n\n{pipe}"
    assert shown("no table <tr>", tables="markdown") == "no table <tr>"
    in_dollars = shown(
        r"<table><tr><td>\(|x|\)</td></tr></table>", tables="markdown", math="dollars"
    )
    assert in_dollars.startswith(r"| $\|x\|$ |")


# --- plain text -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MATHS, "Share p_k<12 % and x^2+1/3"),
        ("## Head", "Head"),
        ("**bold** and *it* and __strong__ and `code`", "bold and it and strong and code"),
        ("snake_case_name 2 * 3 * 4 a*b", "snake_case_name 2 * 3 * 4 a*b"),
        ("<center>Figure 1 | x<sup>2</sup> </center>", "Figure 1 | x2 "),
        ("a &lt;b&gt; AT&T &amp; c < d", "a <b> AT&T & c < d"),
        ("[word](http://x/y)", "word http://x/y"),
        ("![alt](picture.png)", "alt"),
        ("> quoted\n\n- item\n1. first", "quoted\n\n- item\n1. first"),
        ("a\n\n---\n\nb", "a\n\n\nb"),
        ("```py\nx = 1\n```\n", "x = 1\n"),
        ("one<br>two", "one\ntwo"),
        ("| a | b |\n|---|:-:|\n| 1 | 2 |", "a\tb\n1\t2"),
        ("x <table><tr><td>a</td><td>b</td></tr></table> y", "x\na\tb\ny"),
        (
            r"\(\frac{a+1}{\sqrt{b}} \leq \text{some words} \unknown\)",
            "(a+1)/(√b) ≤ some words unknown",
        ),
        (r"\(\alpha \times \{1\}\)", "\u03b1 × {1}"),
        ("Name: ________", "Name: ________"),
    ],
)
def test_plain_text_drops_markup_and_keeps_words(text: str, expected: str) -> None:
    assert to_plain_text(text) == expected


def test_plain_text_of_the_real_output_has_no_markup() -> None:
    for page in real_pages():
        for each in page_result(page).blocks:
            text = block_text(each, told(output="text"))
            assert not re.search(r"</?(?:table|tr|td|center|br)\b|\\[A-Za-z(\[]|^#", text), text
            prose = re.findall(
                r"(?<![\\\w<])[A-Za-z]{4,}(?![\w>])", re.sub(r"\\\S*", " ", each.text)
            )
            assert {word for word in prose if word not in _MARKUP_WORDS} <= set(
                re.findall(r"[A-Za-z]+", text)
            )


@given(st.text(max_size=200))
def test_plain_text_takes_anything(text: str) -> None:
    letters = [sign for sign in re.sub(r"&#?\w+;|<[^<>]*>|\\\w*", "", text) if sign.isalpha()]
    made = to_plain_text(text)
    assert isinstance(made, str)
    if not set(text) & set("<&\\`~"):
        assert [sign for sign in made if sign.isalpha()] == letters


# --- pictures and furniture -----------------------------------------------------------------


def test_pictures_are_dropped_marked_or_linked() -> None:
    picture = Block("image", "", image="p1.png")
    assert block_text(picture, told()) == ""
    assert block_text(picture, told(images="placeholder")) == "<!-- image -->"
    assert block_text(picture, told(images="placeholder", output="text")) == "[image]"
    saved = told(images="save", image_dir="pictures")
    caption = r"<center>Figure [1] | \(x\) </center>"
    assert block_text(picture, saved, caption=caption) == "![Figure (1) | x](pictures/p1.png)"
    assert block_text(picture, told(images="save", image_dir="my pictures")) == (
        "![](<my pictures/p1.png>)"
    )
    assert block_text(Block("image", ""), saved) == "<!-- image -->"
    assert block_text(Block("figure", "words", image="a.png"), saved) == (
        "![](pictures/a.png)\n\nwords"
    )


@pytest.mark.parametrize(
    "label", ["header", "footer", "page_number", "page_header", "footer_image"]
)
def test_furniture_can_be_left_out(label: str) -> None:
    assert is_furniture(Block(label, "x"))
    assert shown("7", label) == "7"
    assert shown("7", label, furniture="drop") == ""
    assert shown("7", "text", furniture="drop") == "7"


# --- cleaning -------------------------------------------------------------------------------


def test_fault_44_control_characters_and_lone_surrogates_are_cleaned() -> None:
    assert clean("a\x00b\x07c\td\ne\fg\x7f\x85h") == "abc\td\ne\fgh"
    assert clean("a\r\nb\rc") == "a\nb\nc"
    assert clean("a\ud800b") == "a\ufffdb"
    assert clean("naïve 区 😀") == "naïve 区 😀"
    assert clean_line(" a\nb\x00  c\u2028d ", limit=99) == "a b c d"
    assert clean_line("x" * 50, limit=10) == "x" * 9 + "…"
    raw = block("text", (1, 2, 3, 4), "a\x00b\ud800c")
    for output in ("markdown", "text", "raw"):
        (found,) = page_result(raw).blocks
        assert block_text(found, told(output=output)) == "ab\ufffdc"
