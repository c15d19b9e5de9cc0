# ruff: noqa: E501 - a table and its rows stand side by side
"""HTML tables as pipe tables and as lines: spans expanded, no word lost."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.answers import real_pages

from deepseek_ocr_loaders.tables import html_to_pipe, html_to_rows


def cells(pipe: str) -> list[list[str]]:
    """Read a pipe table as GitHub does; fails where it is none."""
    lines = pipe.split("\n")
    assert re.fullmatch(r"\|(?: --- \|)+", lines[1]), lines[1]
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in (lines[0], *lines[2:])
    ]
    assert all(line.startswith("| ") and line.endswith(" |") for line in (lines[0], *lines[2:]))
    assert len({len(row) for row in rows}) == 1, "rows of different lengths"
    assert len(rows[0]) == lines[1].count("---")
    return rows


def test_the_four_tables_of_the_real_output_are_valid_pipe_tables() -> None:
    tables = [
        table
        for page in real_pages()
        for table in re.findall("<table>.*?</table>", page, re.DOTALL)
    ]
    read = [cells(html_to_pipe(table)) for table in tables]
    assert [(len(rows), len(rows[0])) for rows in read] == [(5, 6), (9, 5), (31, 11), (7, 9)]
    assert [len(rows) for rows in read] == [table.count("<tr>") for table in tables]
    assert read[0][0] == ["Mode", *["Native Resolution"] * 3, *["Dynamic Resolution"] * 2]
    assert read[0][1] == ["Mode", "Tiny", "Small", "Base", "Large", "Gundam"]
    assert read[0][3] == ["Tokens", "64", "100", "256", "400", "n×100+256"]
    for table, rows in zip(tables, read, strict=True):
        said = re.sub("<[^>]*>", " ", table.replace("<br>", " ")).split()
        found = " ".join(" ".join(row) for row in rows).replace("<br>", " ")
        assert set(said) <= set(found.split())


def test_spans_are_expanded() -> None:
    html = (
        '<table><tr><td rowspan="2">A</td><td colspan="2">B</td></tr>'
        "<tr><td>1</td><td>2</td></tr></table>"
    )
    assert html_to_pipe(html) == "| A | B | B |\n| --- | --- | --- |\n| A | 1 | 2 |"
    assert html_to_rows(html) == "A\tB\n1\t2"


@pytest.mark.parametrize(
    ("html", "rows"),
    [
        ("<table><tr><th>a</th></tr><tr><td>b</td></tr></table>", [["a"], ["b"]]),
        ("<table><tr><td>a<td>b<tr><td>c", [["a", "b"], ["c", ""]]),
        ("<table><td>a</td><td>b</td></table>", [["a", "b"]]),
        ("<tr><td>a</td></tr>", [["a"]]),
        ("<table><thead><tr><td>a</td></tr></thead><tbody><tr><td>b</td></tr></tbody></table>", [["a"], ["b"]]),
        ("<table><tr><td>a|b</td><td>c\nd</td><td>e<br>f</td></tr></table>", [["a\\|b", "c d", "e<br>f"]]),
        ("<table><tr><td>x<sup>2</sup></td><td>y<sub>i</sub></td></tr></table>", [["x<sup>2</sup>", "y<sub>i</sub>"]]),
        ("<table><tr><td>a < b</td><td>AT&T &amp; &lt;b&gt;</td></tr></table>", [["a < b", "AT&T & &lt;b>"]]),
        ("<table><tr><td>a <b and c</td></tr></table>", [["a &lt;b and c"]]),
        (r"<table><tr><td>\(\|x\|\)</td></tr></table>", [[r"\(\\|x\\|\)"]]),
        ("<table><tr><td></td><td>a</td></tr><tr></tr><tr><td>b</td></tr></table>", [["", "a"], ["b", ""]]),
        ('<table><tr><td colspan="0">a</td><td rowspan="-2">b</td><td colspan="x">c</td></tr></table>', [["a", "b", "c"]]),
        ('<table><tr><td rowspan="9">a</td><td>b</td></tr></table>', [["a", "b"]]),
        ("<table><tr><td><img alt='logo' src='x'></td></tr></table>", [["logo"]]),
        ("<table><tr><td>n<table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table></td><td>o</td></tr></table>", [["n<br>1 2<br>3", "o"]]),
        ("<TABLE><TR><TD>a</TD></TR></TABLE>", [["a"]]),
        ("<table><tr><td>http://x/y</td></tr></table>", [["http://x/y"]]),
    ],
)  # fmt: skip
def test_tables_in_any_shape(html: str, rows: list[list[str]]) -> None:
    assert cells(html_to_pipe(html)) == rows


def test_text_outside_of_cells_keeps_its_place() -> None:
    html = (
        "before <table><caption>Table 1</caption><tr>left<td>a</td>right</tr>"
        "between<tr><td>b</td></tr>end</table> after"
    )
    before, table, after = html_to_pipe(html).split("\n\n")
    assert (before, after) == ("before Table 1", "end after")
    assert cells(table) == [["left", "a", "right"], ["between", "", ""], ["b", "", ""]]


@pytest.mark.parametrize("html", ["", "<table></table>", "<table><tr></tr></table>", "<table>"])
def test_a_table_without_cells_is_nothing(html: str) -> None:
    assert html_to_pipe(html) == html_to_rows(html) == ""


@pytest.mark.parametrize(
    "html",
    [
        '<table><tr><td colspan="100000000" rowspan="99999999">x<tr><td>a<td>b</table>',
        "<table>"
        + ("<tr>" + '<td colspan="1000" rowspan="1000">some text</td>' * 30 + "</tr>") * 100
        + "</table>",
        "<table><tr>" + '<td colspan="64">' * 2000 + "</tr></table>",
        "<table>" + '<tr><td rowspan="999">x</td></tr>' * 2000 + "</table>",
        '<table><tr><td colspan="60">' + "long " * 20_000 + "</td></tr><tr><td>y</td></tr></table>",
        "<table><tr><td>" * 3000 + "deep",
    ],
)
def test_spans_and_nests_do_not_explode(html: str) -> None:
    pipe = html_to_pipe(html)
    assert len(pipe) < 20 * len(html) + 1_000_000
    for word in re.findall(r">(\w+)", html)[:3]:
        assert word in pipe


words = st.text(string.ascii_letters + string.digits, min_size=1, max_size=5)
pieces = st.one_of(
    words,
    st.sampled_from(
        ["<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>", "<th>", '<td rowspan="2">', "<br>",
         '<td colspan="3">', '<td colspan="99999">', "<thead>", " < ", "&", "&amp;", "|", "<", ">",
         "<x y", "\n", "<!-- ", "-->", "<![CDATA[", "]]>", "<?", "</"]
    ),
)  # fmt: skip


@given(st.lists(pieces, max_size=40))
@settings(max_examples=300, deadline=None)
def test_no_word_of_a_damaged_table_is_lost(parts: list[str]) -> None:
    # Blanks keep a word from becoming part of a tag's name.
    html = "<table>" + " ".join(parts)
    plain = [part for part in parts if part.isalnum()]
    for made in (html_to_pipe(html), html_to_rows(html)):
        found = re.findall(r"\w+", made)
        assert all(found.count(word) >= 1 for word in plain)
