"""Elements: captions with their figure or table, headings over everything."""

from __future__ import annotations

import pytest
from support.answers import real_pages

from deepseek_ocr_loaders.elements import Headings, group
from deepseek_ocr_loaders.markup import parse
from deepseek_ocr_loaders.page import Block

TABLE = "<table><tr><td>a</td></tr></table>"


def blocks(*said: str | tuple[str, str]) -> list[Block]:
    return [Block(*each) if isinstance(each, tuple) else Block(each, "x") for each in said]


def grouped(given: list[Block]) -> list[tuple[str, tuple[int, ...]]]:
    return [(element.kind, element.blocks) for element in group(given)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # The real grammar: the tag of the table, the tag of its caption, then both texts.
        ([("table", ""), ("table_caption", f"T 1\n\n{TABLE}")], [("table", (0, 1))]),
        ([("table_caption", "T 1"), ("table", TABLE)], [("table", (0, 1))]),
        ([("table", TABLE), ("table_caption", "T 1")], [("table", (0, 1))]),
        ([("table", TABLE), ("table_footnote", "n")], [("table", (0, 1))]),
        (
            [("table_caption", "T"), ("table", TABLE), ("table_footnote", "n"), "text"],
            [("table", (0, 1, 2)), ("text", (3,))],
        ),
        ([("table_caption", f"T 1\n\n{TABLE}")], [("table", (0,))]),
        (
            [("table", TABLE), ("table_caption", f"T 2\n\n{TABLE}")],
            [("table", (0,)), ("table", (1,))],
        ),
        ([("image", ""), "image_caption"], [("image", (0, 1))]),
        (["image_caption", ("image", "")], [("image", (0, 1))]),
        (
            [("image", ""), "image_caption", ("image", ""), "image_caption"],
            [("image", (0, 1)), ("image", (2, 3))],
        ),
        (
            ["image_caption", ("image", ""), "image_caption", ("image", "")],
            [("image", (0, 1)), ("image", (2, 3))],
        ),
        ([("image", ""), ("image", ""), "image_caption"], [("image", (0,)), ("image", (1, 2))]),
        ([("figure", ""), "figure_caption"], [("figure", (0, 1))]),
        ([("chart", ""), "caption", "text"], [("chart", (0, 1)), ("text", (2,))]),
        ([("image", ""), "table_caption", ("table", TABLE)], [("image", (0,)), ("table", (1, 2))]),
        (
            ["text", "image_caption", "text"],
            [("text", (0,)), ("image_caption", (1,)), ("text", (2,))],
        ),
        ([], []),
    ],
)
def test_captions_stay_with_what_they_describe(
    given: list[str | tuple[str, str]], expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    assert grouped(blocks(*given)) == expected


def test_each_block_of_the_real_output_is_in_one_element() -> None:
    for page in real_pages():
        found = parse(page)
        members = [index for element in group(found) for index in element.blocks]
        assert members == list(range(len(found)))


def test_text_outside_tags_is_an_element_of_kind_text() -> None:
    assert grouped([Block(None, "x")]) == [("text", (0,))]


# --- headings -------------------------------------------------------------------------------


def path_after(*said: Block) -> str:
    headings = Headings()
    for block in said:
        headings.see(block)
    return headings.path


def test_headings_nest_by_their_marks() -> None:
    assert path_after(Block("title", "# A"), Block("sub_title", "## B")) == "A > B"
    assert (
        path_after(Block("title", "# A"), Block("sub_title", "## B"), Block("sub_title", "## C"))
        == "A > C"
    )
    assert (
        path_after(Block("title", "# A"), Block("sub_title", "### B"), Block("title", "# C")) == "C"
    )
    assert path_after(Block("title", "A"), Block("sub_title", "B"), Block("text", "x")) == "A > B"


def test_numbers_of_sections_count_more_than_marks() -> None:
    said = ("# Paper", "## 1. One", "# 1.1. Sub", "# 1.1.1 Deep", "# 2 Two", "#### 2.1 Sub")
    assert path_after(*(Block("sub_title", each) for each in said)) == "Paper > 2 Two > 2.1 Sub"


def test_headings_in_text_without_tags_count() -> None:
    assert path_after(Block(None, "# A\n\ntext\n\n## B\n\nmore # no heading")) == "A > B"
    assert path_after(Block(None, "#hash and C# and\n    # code")) == ""


@pytest.mark.parametrize("said", ["# Page 7", "7", "- 12 -", "Page 3 of 9", "第 3 页", "**4**"])
def test_fault_41_a_printed_page_number_is_no_heading(said: str) -> None:
    assert path_after(Block("title", "# A"), Block("title", said)) == "A"


def test_headings_are_short_and_plain() -> None:
    long = path_after(*(Block("title", f"{'#' * level} {'word ' * 60}") for level in (1, 2, 3, 4)))
    assert len(long) <= 160
    assert path_after(Block("title", "# **A** \\(x\\)\nsecond\x00 line")) == "A x second line"
