"""HTML tables → GitHub pipe tables, or rows of plain text, without losing a word of a damaged one.

The first row is the header: a pipe table needs one, and the model marks none. A cell that spans
rows or columns is repeated in each place that it covers, so that every row can be read alone.
Text that is in the table but in no cell keeps its place: before, after, or as a row of its own.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning
from bs4.element import NavigableString, Tag

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["html_to_pipe", "html_to_rows"]

_SPAN_MAX = 64
_CELLS_MAX = 100_000
_REPEATED_MAX = 200_000
"""Characters that repeating spanning cells may add to one table."""

# All other "<" and "&" are text: the model writes `a < b` and `AT&T` as they stand on the page.
_NAMES = (
    "a|b|br|caption|center|code|col|colgroup|div|em|h[1-6]|hr|i|img|li|ol|p|s|small|span|strong|"
    "sub|sup|table|tbody|td|tfoot|th|thead|tr|u|ul"
)
_TEXT_LT = re.compile(rf"<(?!/?(?:{_NAMES})(?:\s[^<>]*)?/?>)", re.IGNORECASE)
_TEXT_AMP = re.compile(r"&(?!(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});)")
_TAG_LIKE = re.compile(r"<(?=[A-Za-z/!?])")
_SPACE = re.compile(r"[ \t\r\n\f]+")
_BREAK = "\x00"
"""Stands for a line break within a cell until it is known how that is written."""
_SUPER = re.compile("\x01[^\x02]*\x02")
"""A tag that raises or lowers what it holds, likewise."""
_BLOCKS = frozenset({
    "caption", "center", "div", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "ul",
})  # fmt: skip
_OURS = re.compile("[\x00-\x02]")


def html_to_pipe(html: str) -> str:
    """Give the pipe table that an HTML table makes; text that is no table stays around it.

    Args:
        html: One table, whole or damaged, with nested tables as text of their cells.
    """
    table = _read(html)
    rows = _expand(table.rows)
    lines = [_cell_markdown(text) for text in table.before]
    if rows:
        header, *body = [
            "| " + " | ".join(_cell_markdown(cell) for cell in row) + " |" for row in rows
        ]
        rule = "|" + " --- |" * len(rows[0])
        pipes = "\n".join([header, rule, *body])
        lines.append(pipes)
    lines += [_cell_markdown(text) for text in table.after]
    return "\n\n".join(lines)


def html_to_rows(html: str) -> str:
    """Give the rows of an HTML table as lines, cells separated by tabs, spans not repeated."""
    table = _read(html)
    lines = [*table.before]
    lines += ["\t".join(cell.text for cell in row).rstrip() for row in table.rows]
    lines += table.after
    return "\n".join(_SUPER.sub("", line.replace(_BREAK, " ")) for line in lines if line.strip())


# --- reading ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cell:
    text: str = ""
    columns: int = 1
    rows: int = 1
    parts: list[str] = field(default_factory=list)

    def close(self) -> None:
        text = _SPACE.sub(" ", "".join(self.parts)).strip()
        self.text = re.sub(rf" ?(?:{_BREAK} ?)+", _BREAK, text).strip(_BREAK + " ")


@dataclass(slots=True)
class _Table:
    before: list[str] = field(default_factory=list)
    rows: list[list[_Cell]] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


def _read(html: str) -> _Table:
    html = _TEXT_AMP.sub("&amp;", _TEXT_LT.sub("&lt;", _OURS.sub("", html)))
    with warnings.catch_warnings():
        # A cell that holds nothing but an address or a path is still no file name.
        warnings.simplefilter("ignore", MarkupResemblesLocatorWarning)
        soup = BeautifulSoup(html, "html.parser")
    reader = _Reader()
    for node, entered in _walk(soup):
        if isinstance(node, Tag):
            reader.tag(node, entered=entered)
        elif entered:
            reader.text(str(node))
    return reader.finish()


def _walk(soup: BeautifulSoup) -> Iterator[tuple[Tag | NavigableString, bool]]:
    """Give each node when it is entered, and each tag again when it is left; no recursion."""
    stack = [iter(soup.contents)]
    opened: list[Tag] = []
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            if opened:
                yield opened.pop(), False
            continue
        if isinstance(node, Tag):
            yield node, True
            opened.append(node)
            stack.append(iter(node.contents))
        elif isinstance(node, NavigableString):
            yield node, True


class _Reader:
    """Turns tags and texts into rows of cells, whatever order they come in."""

    def __init__(self) -> None:
        self.table = _Table()
        self.depth = 0
        self.row: list[_Cell] | None = None
        self.cell: _Cell | None = None
        self.loose: list[str] = []

    def tag(self, tag: Tag, *, entered: bool) -> None:
        name = tag.name
        if name == "table":
            self.depth += 1 if entered else -1
            self.text(" ")
        elif self.depth > 1 and name in {"td", "th"}:
            self.text(" ")  # a table in a cell is text of that cell
        elif self.depth > 1 and name == "tr":
            self.text(_BREAK)
        elif name == "tr":
            self._end_row()
            self.row = [] if entered else None
        elif name in {"td", "th"}:
            self._end_cell()
            if entered:
                self._start_cell(tag)
        else:
            self._other(tag, entered=entered)

    def _other(self, tag: Tag, *, entered: bool) -> None:
        if tag.name in {"sub", "sup"} and self.cell is not None:
            self.text(f"\x01{'' if entered else '/'}{tag.name}\x02")
        elif tag.name in _BLOCKS:
            self.text(_BREAK if self.cell is not None else " ")
        elif entered and tag.name == "br":
            self.text(_BREAK)
        elif entered and tag.name == "img":
            self.text(str(tag.get("alt") or ""))

    def text(self, text: str) -> None:
        (self.loose if self.cell is None else self.cell.parts).append(text)

    def _start_cell(self, tag: Tag) -> None:
        self._place_loose()
        if self.row is None:
            self.row = []
        self.cell = _Cell(columns=_span(tag, "colspan"), rows=_span(tag, "rowspan"))
        self.row.append(self.cell)

    def _end_cell(self) -> None:
        if self.cell is not None:
            self.cell.close()
            self.cell = None

    def _end_row(self) -> None:
        self._end_cell()
        self._place_loose()
        if self.row:
            self.table.rows.append(self.row)
        self.row = None

    def _place_loose(self) -> None:
        """Put text that was in no cell where it stood."""
        cell = _Cell(parts=self.loose)
        self.loose = []
        cell.close()
        if not cell.text:
            return
        if self.row is not None:
            self.row.append(cell)
        elif self.table.rows:
            self.table.rows.append([cell])
        else:
            self.table.before.append(cell.text)

    def finish(self) -> _Table:
        self._end_cell()
        if self.row:
            self.table.rows.append(self.row)
        self.row = None
        last = _Cell(parts=self.loose)
        last.close()
        if last.text:
            (self.table.after if self.table.rows else self.table.before).append(last.text)
        return self.table


def _span(tag: Tag, name: str) -> int:
    digits = re.match(r"\s*([0-9]{1,9})", str(tag.get(name) or ""))
    return max(1, int(digits[1])) if digits else 1


# --- spans --------------------------------------------------------------------------------


def _expand(rows: list[list[_Cell]]) -> list[list[str]]:
    """Lay the cells out on a grid in which each covered place has the text."""
    width = _width(rows)
    spans = len(rows) * width <= _CELLS_MAX
    if not spans:
        width = max(map(len, rows), default=0)
    budget = _REPEATED_MAX
    grid: list[list[str]] = []
    from_above: list[tuple[int, str]] = [(0, "")] * width
    """By column: how many more rows a cell from above covers, and its text."""
    for cells in rows:
        row: list[str] = []
        waiting = iter(cells)
        cell = next(waiting, None)
        taken = 0
        while cell is not None or len(row) < width:
            column = len(row)
            if column == len(from_above):
                from_above.append((0, ""))
            left, text = from_above[column]
            if left and not taken:
                from_above[column] = (left - 1, text)
                row.append(text)
                continue
            if cell is None:
                row.append("")
                continue
            if taken or cell.rows > 1:
                budget -= len(cell.text)
            text = cell.text if budget >= 0 else ""
            row.append(text if taken else cell.text)
            from_above[column] = (cell.rows - 1 if spans else 0, text)
            taken += 1
            if taken >= (cell.columns if spans else 1) or column + 1 >= width:
                cell, taken = next(waiting, None), 0
        grid.append(row)
    width = max(map(len, grid), default=0)
    return [row + [""] * (width - len(row)) for row in grid]


def _width(rows: list[list[_Cell]]) -> int:
    """Find how many columns the rows need; a span that no page has counts as one column."""
    width = 0
    covered: list[int] = []
    for cells in rows:
        columns = [cell.columns if cell.columns <= _SPAN_MAX else 1 for cell in cells]
        width = max(width, sum(columns) + len(covered))
        covered = [left - 1 for left in covered if left > 1]
        for cell, count in zip(cells, columns, strict=True):
            if cell.rows > 1 and len(covered) < _CELLS_MAX:
                covered += [cell.rows - 1] * count
    return width


def _cell_markdown(text: str) -> str:
    text = _TAG_LIKE.sub("&lt;", text).replace("|", "\\|")
    return text.replace(_BREAK, "<br>").replace("\x01", "<").replace("\x02", ">")
