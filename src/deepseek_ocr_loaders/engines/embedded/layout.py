"""Lines → blocks in reading order: columns, rows of a table, paragraphs, headings by size."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deepseek_ocr_loaders.engines.embedded.recognise import Line

__all__ = ["TextBlock", "arrange"]


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Lines that belong together.

    Attributes:
        label: `text`, `title` or `sub_title`.
        text: The lines joined as running text; cells of a table row by two spaces.
        lines: In reading order.
    """

    label: str
    text: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    """What stands side by side in one column; more than one cell where there are wide gaps."""

    cells: tuple[tuple[Line, ...], ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(line for cell in self.cells for line in cell)

    @property
    def x1(self) -> float:
        return self.cells[0][0].x1

    @property
    def x2(self) -> float:
        return max(line.x2 for line in self.lines)

    @property
    def middle(self) -> float:
        return median((line.y1 + line.y2) / 2 for line in self.lines)

    @property
    def height(self) -> float:
        return max(line.height for line in self.lines)

    @property
    def text(self) -> str:
        return "  ".join(_join([line.text for line in cell]) for cell in self.cells)


def arrange(lines: Sequence[Line]) -> list[TextBlock]:
    """Put lines into blocks, in the order in which a person reads them."""
    if not lines:
        return []
    original, level = _levelled(lines)
    label_of = _labeller(level)
    blocks: list[TextBlock] = []
    for region in _regions(level):
        rows = _rows(region)
        labels = [label_of(row) for row in rows]
        for group in _groups(rows, labels):
            label = labels[group[0]]
            members = [rows[index] for index in group]
            text = members[0].text if len(members) == 1 else _join([row.text for row in members])
            blocks.append(
                TextBlock(
                    label, text, tuple(original[id(line)] for row in members for line in row.lines)
                )
            )
    return blocks


# --- the page as if the scan were not slanted ---------------------------------------------


def _levelled(lines: Sequence[Line]) -> tuple[dict[int, Line], list[Line]]:
    """Shift every line by the page's slant; also give the way back, by identity."""
    long = [line.slope for line in lines if line.x2 - line.x1 > 8 * line.height]
    slope = median(long) if long else 0.0
    original: dict[int, Line] = {}
    level: list[Line] = []
    for line in lines:
        middle = (line.y1 + line.y2) / 2 - slope * (line.x1 + line.x2) / 2
        half = line.height / 2
        moved = replace(line, y1=middle - half, y2=middle + half)
        original[id(moved)] = line
        level.append(moved)
    return original, level


def _usual(lines: Sequence[Line], measure: Callable[[Line], float]) -> float:
    """Give the measure that most of the text has: the median over characters."""
    total = sum(len(line.text) for line in lines)
    seen = 0
    for line in sorted(lines, key=measure):
        seen += len(line.text)
        if 2 * seen >= total:
            return measure(line)
    raise AssertionError


def _letter_width(line: Line | _Row) -> float:
    """Give the width of a full-width letter; others take half of it, on the average."""
    return (line.x2 - line.x1) / sum(1.0 if _is_wide(letter) else 0.5 for letter in line.text)


# --- columns ------------------------------------------------------------------------------


def _regions(lines: list[Line]) -> list[list[Line]]:
    """Split into regions that are each read from top to bottom, in reading order."""
    gutter = _gutter(lines)
    if gutter is None:
        return [lines]
    # What lies across the gutter (a heading, a wide table), or a white strip across the page, parts
    # what is above from what is below.
    height = median(line.height for line in lines)
    bands: list[tuple[bool, list[Line]]] = []
    bottom = 0.0
    for line in sorted(lines, key=lambda line: line.y1 + line.y2):
        across = line.x1 < gutter < line.x2
        if not bands or bands[-1][0] != across or line.y1 - bottom > 3 * height:
            bands.append((across, []))
        bands[-1][1].append(line)
        bottom = max(bottom, line.y2)
    regions: list[list[Line]] = []
    for across, band in bands:
        left = [line for line in band if line.x2 <= gutter]
        right = [line for line in band if line.x1 >= gutter]
        if across or not left or not right or not (_is_prose(left) and _is_prose(right)):
            regions.append(band)
        else:
            regions += _regions(left) + _regions(right)
    return regions


def _gutter(lines: list[Line]) -> float | None:
    """Give the x of the white strip between two columns of prose; None where there is none."""
    if len(lines) < 6:
        return None
    height = median(line.height for line in lines)
    found: dict[float, tuple[int, int]] = {}
    x, end = min(line.x1 for line in lines), max(line.x2 for line in lines)
    while x < end:
        x += height / 3
        left = [line for line in lines if line.x2 <= x]
        right = [line for line in lines if line.x1 >= x]
        if min(len(left), len(right)) >= 3 and _side_by_side(left, right, height):
            found[x] = (len(left) + len(right), min(len(left), len(right)))
    if not found:
        return None
    # The strip that the fewest lines cross, in the middle.
    best = max(found.values())
    strip = [x for x, lines_beside in found.items() if lines_beside == best]
    return strip[len(strip) // 2]


def _side_by_side(left: list[Line], right: list[Line], height: float) -> bool:
    gap = min(line.x1 for line in right) - max(line.x2 for line in left)
    shared = min(line.y2 for line in (max(side, key=lambda m: m.y2) for side in (left, right)))
    shared -= max(line.y1 for line in (min(side, key=lambda m: m.y1) for side in (left, right)))
    return gap > 0.6 * height and shared > 3 * height and _is_prose(left) and _is_prose(right)


def _is_prose(lines: list[Line]) -> bool:
    """Tell running text from a column of a table: its lines are long and leave little white."""
    height = median(line.height for line in lines)
    if median(line.x2 - line.x1 for line in lines) < 7 * height:
        return False
    inked = covered = bottom = 0.0
    for line in sorted(lines, key=lambda line: line.y1):
        inked += (line.x2 - line.x1) * line.height
        covered += max(line.y2 - max(line.y1, bottom), 0.0)
        bottom = max(line.y2, bottom)
    width = max(line.x2 for line in lines) - min(line.x1 for line in lines)
    return inked >= 0.55 * width * covered


# --- rows ---------------------------------------------------------------------------------


def _rows(lines: list[Line]) -> list[_Row]:
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: line.y1 + line.y2):
        if rows and _same_row(rows[-1], line):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [_row(sorted(row, key=lambda line: line.x1)) for row in rows]


def _same_row(row: list[Line], line: Line) -> bool:
    middle = (line.y1 + line.y2) / 2
    for other in row:
        apart = abs(middle - (other.y1 + other.y2) / 2)
        # Two pieces of one line do not lie above each other.
        if min(line.x2, other.x2) - max(line.x1, other.x1) > 0.5 * min(line.height, other.height):
            return False
        if apart > 0.5 * min(line.height, other.height):
            return False
    return True


def _row(lines: list[Line]) -> _Row:
    cells: list[list[Line]] = []
    for line in lines:
        if cells and line.x1 - cells[-1][-1].x2 < 1.2 * line.height:
            cells[-1].append(line)
        else:
            cells.append([line])
    return _Row(tuple(tuple(cell) for cell in cells))


# --- headings and paragraphs --------------------------------------------------------------


def _labeller(lines: Sequence[Line]) -> Callable[[_Row], str]:
    """Give a function that calls a row a heading where its letters are plainly larger.

    Boxes are too rough to go by their height alone, and capitals are wide without being large:
    both must agree.
    """
    height = _usual(lines, lambda line: line.height)
    width = _usual(lines, _letter_width)

    def label(row: _Row) -> str:
        letters = sum(character.isalpha() for character in row.text)
        if len(lines) < 3 or len(row.cells) > 1 or letters < 2 or len(row.text) > 120:
            return "text"
        higher, wider = row.height / height, _letter_width(row) / width
        size = (higher + wider) / 2
        if min(higher, wider) < 1.2 or size < 1.3:
            return "text"
        return "title" if size >= 1.5 else "sub_title"

    return label


_BULLET = re.compile(r"[•·▪●◦○■□]|[–*-]\s|\(?[a-z]\)|\(\d{1,2}\)")
_NUMBER = re.compile(r"\d{1,2}[.)](?:\s|[^\W\d])")


def _groups(rows: list[_Row], labels: list[str]) -> list[list[int]]:
    """Join rows into paragraphs; gives the indexes of the rows of each."""
    single = [row for row in rows if len(row.cells) == 1]
    edges = sorted(row.x2 for row in single)
    right_edge = edges[int(0.8 * (len(edges) - 1))] if edges else 0.0
    pitches = [b.middle - a.middle for a, b in pairwise(rows)]
    groups: list[list[int]] = []
    for index, row in enumerate(rows):
        if index and labels[index] == labels[index - 1] and len(row.cells) == 1:
            above = rows[index - 1]
            near = [pitch for pitch in pitches if pitch < 2.2 * row.height]
            pitch = min(pitches[index - 1], 10 * row.height)
            usual = median(near) if near else row.height
            wide = 1.3 * usual if labels[index] == "text" else 2.0 * row.height
            if (
                len(above.cells) == 1
                and pitch <= wide
                and max(row.height, above.height) <= 1.4 * min(row.height, above.height)
                and min(row.x2, above.x2) > max(row.x1, above.x1)
                and (
                    labels[index] != "text" or _goes_on(rows[groups[-1][0]], above, row, right_edge)
                )
            ):
                groups[-1].append(index)
                continue
        groups.append([index])
    return groups


def _goes_on(first: _Row, above: _Row, row: _Row, right_edge: float) -> bool:
    """Tell whether a row carries on the paragraph of the row above it."""
    # If the first word of this row had found room above, the writer broke the line on purpose.
    letter = (row.x2 - row.x1) / len(row.text)
    word = 2 if _is_wide(row.text[0]) else len(row.text.split(maxsplit=1)[0]) + 1
    full = above.x2 + (word + 2) * letter > right_edge
    listed = bool(_BULLET.match(first.text) or _NUMBER.match(first.text))
    # A number may also begin a line of running text: "volume / 12. The repair".
    if _BULLET.match(row.text) or (_NUMBER.match(row.text) and (listed or not full)):
        return False
    if abs((row.x1 + row.x2) - (above.x1 + above.x2)) < row.height:  # centred, or justified
        return True
    indented = row.x1 > above.x1 + 0.9 * row.height
    return full and (not indented or (listed and above is first))


# --- running text -------------------------------------------------------------------------


def _join(parts: Sequence[str]) -> str:
    text = parts[0]
    for part in parts[1:]:
        if _is_wide(text[-1:]) and _is_wide(part[:1]):
            text += part
        elif re.search(r"(?<![\w-])[^\W\d_]+-$", text) and part[:1].islower():
            text = text[:-1] + part  # a word parted at the end of the line
        else:
            text += " " + part
    return text


def _is_wide(character: str) -> bool:
    """Tell whether a character belongs to a script that is written without spaces."""
    return unicodedata.east_asian_width(character) in ("W", "F") if character else False
