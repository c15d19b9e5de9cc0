"""Runaway repetition: where the model began to say the same thing over and over.

A loop is a stretch in which a unit comes again and again: exactly, or differing only in a number
that counts on, or only in boxes that hardly move. Pages repeat themselves honestly, too: forty
rows of dashes, a column of `Closed`, leaders of dots, lines to write on. So the number of times
that counts as a loop is one that no page reaches, and it is lower for a unit that says more.

All searching is done by `str.find` in windows that grow by powers of two, so the time is linear
in the length of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Evidence", "find_loop", "loop_span"]

Evidence = Literal["none", "cut", "stopped"]
"""What the server said: nothing of use, that the answer hit its limit, that it saw a loop."""

_NUMBER = re.compile(r"[0-9]+")
_DET = re.compile(r"<\|det\|>[^<]{0,2000}<\|/det\|>")
_MARKUP = re.compile(r"<\|/?(?:ref|det)\|>|</?[a-z][^<>]{0,200}>", re.IGNORECASE)
_ROW = re.compile(r"<tr|^[ \t]*\|", re.IGNORECASE | re.MULTILINE)

_WINDOWS = tuple(32 << power for power in range(11))
"""Lengths of the pieces that are searched again: a window finds periods up to half its length."""

_SMALL_STEP = 5
"""Boxes that move by so little (of 999) from one to the next would lie on top of each other."""


def find_loop(text: str, *, evidence: Evidence = "none") -> int | None:
    """Give the offset from which the text is a loop; its first round stays before the offset.

    Args:
        text: An answer, tags included.
        evidence: How sure it is, from elsewhere, that there is a loop at the end.
    """
    span = loop_span(text, evidence=evidence)
    return span[0] if span else None


def loop_span(text: str, *, evidence: Evidence = "none") -> tuple[int, int] | None:
    """Give start and end of the first loop, without its first round; None where there is none.

    The end is the end of the text, unless the model got out of the loop by itself.
    """
    loops = [*_exact_loops(text, evidence), *_counting_loops(text, evidence)]
    if not loops and evidence == "stopped":
        loops = [run for run in (_short_tail(text),) if run]
    if not loops:
        return None
    run = min(loops, key=lambda run: run.start)
    start, end = _cut_point(text, run), _end_point(text, run)
    return min(start, end), end


@dataclass(frozen=True, slots=True)
class _Run:
    """Text that repeats itself after `period` characters, from `start` to `end`."""

    start: int
    end: int
    period: int

    @property
    def rounds(self) -> int:
        return (self.end - self.start) // self.period


def _reaches_end(text: str, run: _Run) -> bool:
    return len(text) - run.end <= max(run.period, 80)


def _cut_point(text: str, run: _Run) -> int:
    """Find where the second round begins, at the end of a block, line, row, cell or word."""
    earliest = run.start + run.period
    latest = earliest + run.period
    block = text.find("<|ref|>", earliest, latest + 7)
    if block >= 0:
        return block
    for boundary in ("\n", "</tr>", "</td>", " "):
        # One that ends exactly at `earliest` counts, so look a little before it.
        found = text.find(boundary, earliest - len(boundary), latest)
        if found >= 0:
            return found + len(boundary)
    return earliest


def _end_point(text: str, run: _Run) -> int:
    """Find where the last round ends: what is not part of the loop stays whole."""
    if run.end == len(text):
        return run.end
    earliest = max(run.start, run.end - run.period)
    for boundary in ("\n", ">", " "):
        found = text.rfind(boundary, earliest, run.end)
        if found >= 0:
            end = found + 1
            break
    else:
        end = run.end
    # A last piece without a word, like `</tr></table>`, belongs to the loop.
    return end if len(text) - end > run.period + 80 or _words(text[end:]) else len(text)


# --- runs ---------------------------------------------------------------------------------


def _runs(text: str) -> Iterator[_Run]:
    """Give the stretches of six rounds and more, each with the period of its smallest window."""
    seen: set[tuple[int, int]] = set()
    for window in _WINDOWS:
        if window > len(text):
            return
        at = 0
        while at + window < len(text):
            piece = text[at : at + window]
            again = text.find(piece, at + 1, at + window + window // 2)
            if again < 0:
                at += max(8, window // 4)
                continue
            run = _extend(text, at, again - at)
            if run.rounds >= 6 and (run.start, run.end) not in seen:
                seen.add((run.start, run.end))
                yield run
            at = max(at + max(8, window // 4), run.end - window)


def _extend(text: str, at: int, period: int) -> _Run:
    start = at - _common(text, at, at + period, backwards=True)
    end = at + period + _common(text, at, at + period, backwards=False)
    return _Run(start, end, period)


def _common(text: str, first: int, second: int, *, backwards: bool) -> int:
    """Count how far the text at two places is the same, by pieces that double and then halve."""
    length, step = 0, 64
    limit = first if backwards else len(text) - second
    growing = True
    while step:
        size = min(step, limit - length)
        if backwards:
            left, right = first - length, second - length
            same = text[left - size : left] == text[right - size : right]
        else:
            left, right = first + length, second + length
            same = text[left : left + size] == text[right : right + size]
        if same and size:
            length += size
        if length == limit:
            return length
        growing = growing and same
        step = step * 2 if growing else step // 2
    return length


# --- what counts as a loop ----------------------------------------------------------------


def _words(text: str) -> int:
    """Count the letters and digits that a reader would see."""
    return sum(map(str.isalnum, _MARKUP.sub("", _DET.sub("", text))))


def _enough(unit: str) -> int:
    """Give the number of rounds that no page reaches honestly with this unit."""
    words = _words(unit)
    rounds = min(100, max(12, 4000 // max(words, 1)))
    return max(rounds, 100) if _ROW.search(unit) else rounds


def _scaled(
    rounds: int, text: str, run: _Run, evidence: Evidence, *, counting: bool = False
) -> int:
    if not _reaches_end(text, run):
        return 2 * rounds
    # A table of many numbered rows is what an honest page is cut in: no allowance for those.
    return rounds if evidence == "none" or counting else max(rounds // 2, 8)


def _exact_loops(text: str, evidence: Evidence) -> Iterator[_Run]:
    for run in _runs(text):
        shortest = 1500 if run.period <= 4 else 1000
        if run.end - run.start < shortest:
            continue
        unit = text[run.start : run.start + run.period]
        if run.rounds >= _scaled(_enough(unit), text, run, evidence):
            yield run


def _short_tail(text: str) -> _Run | None:
    """Find what repeats at the very end, three times or more, where the server saw it happen."""
    best: _Run | None = None
    for window in (8, 16, 32, 64, 128, 256, 512):
        at = len(text) - window
        before = text.rfind(text[at:], max(0, at - 4096), len(text) - 1) if at > 0 else -1
        if before >= 0:
            run = _extend(text, before, at - before)
            if run.rounds >= 3 and (best is None or run.start < best.start):
                best = run
    return best


# --- units that differ in numbers ---------------------------------------------------------


class _Masked:
    """A text with each number written as `0`, and the way back."""

    def __init__(self, text: str) -> None:
        self.numbers: list[tuple[int, int]] = []
        pieces: list[str] = []
        self.masked_at: list[int] = []
        at = length = 0
        for found in _NUMBER.finditer(text):
            pieces += (text[at : found.start()], "0")
            length += found.start() - at
            self.masked_at.append(length)
            length += 1
            self.numbers.append(found.span())
            at = found.end()
        pieces.append(text[at:])
        self.source = text
        self.text = "".join(pieces)

    def original(self, position: int) -> int:
        """Give the offset in the source of an offset in the masked text."""
        index = bisect_right(self.masked_at, position) - 1
        if index < 0:
            return position
        start, end = self.numbers[index]
        inside = position == self.masked_at[index]
        return start if inside else end + position - self.masked_at[index] - 1

    def values(self, start: int, end: int) -> list[int]:
        """Give the numbers between two offsets of the masked text."""
        low, high = bisect_left(self.masked_at, start), bisect_left(self.masked_at, end)
        return [int(self.source[a : min(b, a + 12)]) for a, b in self.numbers[low:high]]

    def is_in_box(self, start: int, end: int) -> list[bool]:
        """Tell for each number between two offsets whether it is a coordinate."""
        low, high = bisect_left(self.masked_at, start), bisect_left(self.masked_at, end)
        return [
            self.text.rfind("[[", max(0, at - 300), at)
            > self.text.rfind("]]", max(0, at - 300), at)
            for at in self.masked_at[low:high]
        ]


def _counting_loops(text: str, evidence: Evidence) -> Iterator[_Run]:
    if len(text) < 500 or _NUMBER.search(text) is None:
        return
    masked = _Masked(text)
    for run in _runs(masked.text):
        unit = masked.text[run.start : run.start + run.period]
        if "0" not in unit:
            continue
        in_box = masked.is_in_box(run.start, run.start + run.period)
        values = masked.values(run.start, run.start + run.rounds * run.period)
        rows = list(zip(*[iter(values)] * len(in_box), strict=True))
        for stretch in _steady(rows, in_box):
            first, last = (run.start + run.period * at for at in (stretch.first, stretch.last))
            start = masked.original(first)
            end = masked.original(run.end if stretch.last == run.rounds else last)
            found = _Run(start, end, masked.original(first + run.period) - start)
            enough = _scaled(_enough_numbers(unit, stretch), text, found, evidence, counting=True)
            if stretch.last - stretch.first >= enough:
                yield found


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Rounds in which each number of the text stays or counts on in equal steps.

    `counts` is true where one does, `crawls` where the boxes hardly move.
    """

    first: int
    last: int
    counts: bool
    crawls: bool


def _steady(rows: list[tuple[int, ...]], in_box: list[bool]) -> Iterator[_Stretch]:
    words = [at for at, boxed in enumerate(in_box) if not boxed]
    boxes = [at for at, boxed in enumerate(in_box) if boxed]
    first = crawled = 0
    previous: list[int] | None = None
    for at in range(1, len(rows) + 1):
        step: list[int] | None = None
        if at < len(rows):
            step = [rows[at][slot] - rows[at - 1][slot] for slot in words]
        if at < len(rows) and (previous is None or step == previous):
            moved = [abs(rows[at][slot] - rows[at - 1][slot]) for slot in boxes]
            crawled += bool(moved) and max(moved) <= _SMALL_STEP
            previous = step
            continue
        crawls = crawled >= 0.9 * (at - first - 1)
        yield _Stretch(first, at, counts=any(previous or ()), crawls=bool(boxes) and crawls)
        first, crawled, previous = at, 0, None


def _enough_numbers(unit: str, stretch: _Stretch) -> int:
    rounds = _enough(unit)
    if stretch.crawls:
        return 40
    if stretch.counts:
        # A numbered list is honest longer than a plain one.
        return 160 if _ROW.search(unit) else max(32, rounds * 8 // 5)
    # In the boxes of a plain table the same sign may stand hundreds of times.
    return max(rounds, 400) if _words(unit) < 8 else rounds
