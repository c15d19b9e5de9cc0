"""The text that a page of a PDF carries by itself, where it can be trusted.

A layer is sound if it is what one sees: nothing of it invisible, no picture that covers the page
(a scan's hidden text is another engine's reading), no characters without meaning, words that look
like words, and little ink outside of it. `docs/rendering.md` has the measured error rates.
"""

from __future__ import annotations

import html
import inspect
import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pymupdf
import pymupdf.table
from PIL import Image, ImageDraw

from deepseek_ocr_loaders.page import COORDINATE_MAX, Block, Box

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Evidence", "is_sound", "read_text_layer"]

_FEWEST_CHARACTERS = 40
"""A page with less is a picture, a form or a title: it costs little to look at it."""

_MOST_HIDDEN = 0.02
_MOST_PICTURE = 0.4
_MOST_MEANINGLESS = 0.005
_FEWEST_WORDS = 0.7
_LEAST_LIKENESS = 0.8
_MOST_ACCENTS = 0.4
_MOST_INK_OUTSIDE = 0.5

_FEWEST_LETTERS = 40
"""With fewer Latin letters, or where most are not Latin, their frequency says nothing."""

_DARK = 160
"""Pixels of the page that are darker than this, of 255, are ink; tinted backgrounds are not."""

_THIN = 3
"""A box narrower than this, in points, is a rule."""

_SPACE = 32

_GLYPH = re.compile(r"\(cid:\d+\)|/g\d+")
"""What some extractors write for a glyph without a character."""

_SEPARATORS = re.compile(r"[-/\u2013\u2014&+.@:,_=()]+")
_NUMBER = re.compile(r"[^\w\s]?\d+(?:[^\w\s]\d+)*[^\w\s]?[a-z]{0,3}", re.IGNORECASE)
_VOWEL = re.compile(r"[aeiouy\u00e6\u0153\u00f8\u0131]", re.IGNORECASE)
# fmt: off
_LETTERS = {
    "e": 135, "a": 95, "i": 76, "n": 73, "t": 72, "o": 70, "s": 70, "r": 66, "u": 47, "l": 46,
    "d": 44, "c": 34, "m": 28, "h": 27, "p": 25, "g": 17, "f": 15, "v": 14, "b": 13, "y": 10,
    "w": 9, "k": 9, "q": 6, "z": 6, "j": 3, "x": 3,
}
# fmt: on
"""Per mille of each letter without accents, roughly, over the larger languages of Europe; a text
whose letters were exchanged is unlike all of them."""

_LONGEST_WORD = 30
_FEWEST_RULES = 4
"""Lines or boxes that a table has at least; a page without them is not searched for tables."""

_TABLE_OPTIONS = frozenset(inspect.signature(pymupdf.table.find_tables).parameters)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for and against the text layer of one page; shares are 0 to 1.

    Attributes:
        characters: Visible characters in the layer, without spaces.
        hidden: Share of them that are drawn invisibly.
        picture: Share of the page that pictures cover.
        meaningless: Share of characters that stand for nothing: replacement, private, control.
        words: Share of the words that look like words or numbers.
        likeness: How like those of a language the Latin letters are distributed; 1 where there
            are too few to tell.
        accents: Share of the Latin letters that are not in ASCII.
        ink_outside: Ink outside the text's lines, relative to the ink inside them.
    """

    characters: int
    hidden: float
    picture: float
    meaningless: float
    words: float
    likeness: float
    accents: float
    ink_outside: float


def is_sound(evidence: Evidence) -> bool:
    """Tell whether a layer can be read instead of the page."""
    return (
        evidence.characters >= _FEWEST_CHARACTERS
        and evidence.hidden <= _MOST_HIDDEN
        and evidence.picture <= _MOST_PICTURE
        and evidence.meaningless <= _MOST_MEANINGLESS
        and evidence.words >= _FEWEST_WORDS
        and evidence.likeness >= _LEAST_LIKENESS
        and evidence.accents <= _MOST_ACCENTS
        and evidence.ink_outside <= _MOST_INK_OUTSIDE
    )


def read_text_layer(
    page: Any, thumbnail: Image.Image, *, turn: int = 0
) -> tuple[Block, ...] | None:
    """Give the blocks of a sound text layer in the file's own reading order, else None.

    Args:
        page: A `pymupdf.Page`; the caller holds the lock of MuPDF.
        thumbnail: The page as drawn, small, mode `L`, not turned.
        turn: Degrees clockwise that the picture of the page would be turned.
    """
    # By default each picture of the page would be decoded into the answer.
    blocks = page.get_text("dict", flags=pymupdf.TEXTFLAGS_TEXT)["blocks"]
    if not is_sound(gather(page, blocks, thumbnail)):
        return None
    tables = list(_tables(page))
    found: list[Block] = []
    for block in blocks:
        lines = []
        for line in block["lines"]:
            table = next((table for table in tables if _inside(line["bbox"], table[0])), None)
            if table is None:
                lines.append(line)
            elif table[1]:
                # A table stands where its first line does.
                found.extend(_text_block(page, lines, turn))
                lines = []
                found.append(Block("table", table[1], (_box(page, table[0], turn),)))
                table[1] = ""
        found.extend(_text_block(page, lines, turn))
    return tuple(found)


def gather(page: Any, blocks: list[dict[str, Any]], thumbnail: Image.Image) -> Evidence:
    """Give what speaks for and against the layer; see `read_text_layer` for the arguments."""
    spans = [span for block in blocks for line in block["lines"] for span in line["spans"]]
    text = " ".join(span["text"] for span in spans)
    visible = [character for character in text if not character.isspace()]
    count = len(visible)
    if not count:
        return Evidence(0, 0, 0, 0, 0, 0, 0, 0)
    likeness, accents = _letters(visible)
    return Evidence(
        characters=count,
        hidden=_hidden(page) / count,
        picture=_picture_share(page),
        meaningless=(sum(map(_is_meaningless, visible)) + len("".join(_GLYPH.findall(text))))
        / count,
        words=_word_share(blocks),
        likeness=likeness,
        accents=accents,
        ink_outside=_ink_outside(page, blocks, thumbnail),
    )


def _hidden(page: Any) -> int:
    return sum(
        sum(code != _SPACE for code, *_ in span["chars"])
        for span in page.get_texttrace()
        if span["type"] == 3 or span["opacity"] == 0
    )


def _picture_share(page: Any) -> float:
    area = abs(page.rect) or 1.0
    covered = 0.0
    for picture in page.get_image_info():
        covered += abs(page.rect & _upright(page, picture["bbox"]))
    return min(1.0, covered / area)


def _is_meaningless(character: str) -> bool:
    return character == "\ufffd" or unicodedata.category(character) in {"Co", "Cn", "Cc", "Cs"}


def _letters(visible: list[str]) -> tuple[float, float]:
    letters = [character for character in visible if character.isalpha()]
    latin = [c for c in letters if unicodedata.name(c, "").startswith("LATIN")]
    if len(latin) < max(_FEWEST_LETTERS, len(letters) / 2):
        return 1.0, 0.0
    counts = Counter(unicodedata.normalize("NFKD", character)[0].lower() for character in latin)
    product = sum(counts[letter] * share for letter, share in _LETTERS.items())
    length = math.hypot(*counts.values()) * math.hypot(*_LETTERS.values())
    return product / length, sum(not character.isascii() for character in latin) / len(latin)


def _word_share(blocks: list[dict[str, Any]]) -> float:
    words = [
        word
        for block in blocks
        for line in block["lines"]
        for word in "".join(span["text"] for span in line["spans"]).split()
    ]
    # Symbols alone are bullets and operators: they say nothing.
    words = [word for word in words if any(character.isalnum() for character in word)]
    return sum(map(_looks_like_word, words)) / len(words) if words else 0.0


def _looks_like_word(word: str) -> bool:
    start = next(place for place, letter in enumerate(word) if letter.isalnum())
    end = next(place for place, letter in enumerate(reversed(word)) if letter.isalnum())
    core = word[start : len(word) - end]
    if _NUMBER.fullmatch(core):
        return True
    parts = _SEPARATORS.split(core.replace("'", "").replace("\u2019", ""))
    return all(map(_is_pronounceable, parts))


def _is_pronounceable(part: str) -> bool:
    if not part.isalnum():
        return not part
    if not unicodedata.name(part[0], "").startswith("LATIN"):
        return True
    if len(part) > _LONGEST_WORD:
        return False
    # Consonants alone are an abbreviation if they are few.
    return len(part) <= 4 or bool(_VOWEL.search(unicodedata.normalize("NFKD", part)))


def _ink_outside(page: Any, blocks: list[dict[str, Any]], thumbnail: Image.Image) -> float:
    mask = Image.new("L", thumbnail.size, 0)
    draw = ImageDraw.Draw(mask)
    scale_x = thumbnail.width / page.rect.width
    scale_y = thumbnail.height / page.rect.height
    for block in blocks:
        for line in block["lines"]:
            x0, y0, x1, y1 = _upright(page, line["bbox"])
            draw.rectangle(
                (x0 * scale_x - 1, y0 * scale_y - 1, x1 * scale_x + 1, y1 * scale_y + 1), fill=255
            )
    for rule in _rules(page):
        x0, y0, x1, y1 = _upright(page, rule)
        draw.rectangle(
            (x0 * scale_x - 2, y0 * scale_y - 2, x1 * scale_x + 2, y1 * scale_y + 2), fill=128
        )
    dark = thumbnail.point([255 * (value < _DARK) for value in range(256)])
    # What stands for itself on the mask is text or a rule; only dark pixels are counted.
    ink = mask.histogram(dark)
    return ink[0] / ink[255] if ink[255] else 1.0


def _rules(page: Any) -> Iterator[tuple[float, float, float, float]]:
    """Give the straight lines on a page and the edges of its boxes, as thin rectangles."""
    for path in page.get_cdrawings():
        for item in path["items"]:
            if item[0] == "l":
                (x0, y0), (x1, y1) = item[1:3]
                if min(abs(x0 - x1), abs(y0 - y1)) < 1:
                    yield min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)
            elif item[0] == "re":
                x0, y0, x1, y1 = item[1]
                if min(x1 - x0, y1 - y0) < _THIN:
                    yield x0, y0, x1, y1
                elif path["type"] != "f":
                    yield x0, y0, x1, y0
                    yield x0, y1, x1, y1
                    yield x0, y0, x0, y1
                    yield x1, y0, x1, y1


def _tables(page: Any) -> Iterator[list[Any]]:
    """Give [bounding box, HTML] of each table that holds all the text inside it."""
    # On a turned page it is not known where the cells are.
    if page.rotation or not _has_rules(page):
        return
    # The layout model that newer versions bring takes 0.3 s and 200 MB.
    options = {"use_layout": False} if "use_layout" in _TABLE_OPTIONS else {}
    found = page.find_tables(**options)
    words = page.get_text("words")
    for table in found.tables if found else ():
        cells = [[_cell(words, box) for box in row.cells] for row in table.rows]
        if len(cells) < 2 or max(map(len, cells)) < 2:
            continue
        inside = sum(_inside(word[:4], table.bbox) for word in words)
        if sum(len(cell) for row in cells for cell in row) == inside:
            yield [table.bbox, _html(cells)]


def _cell(words: list[Any], box: tuple[float, ...] | None) -> list[str]:
    # PyMuPDF's own text of a cell puts full stops on a line of their own.
    return [] if box is None else [word[4] for word in words if _inside(word[:4], box)]


def _has_rules(page: Any) -> bool:
    return next(islice(_rules(page), _FEWEST_RULES - 1, None), None) is not None


def _html(rows: list[list[list[str]]]) -> str:
    body = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape(' '.join(cell), quote=False)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f"<table>{body}</table>"


def _inside(bbox: tuple[float, ...], outer: tuple[float, ...]) -> bool:
    x, y = (bbox[0] + bbox[2]) / 2, (bbox[1] + bbox[3]) / 2
    return bool(outer[0] <= x <= outer[2] and outer[1] <= y <= outer[3])


def _text_block(page: Any, lines: list[dict[str, Any]], turn: int) -> Iterator[Block]:
    texts = ["".join(span["text"] for span in line["spans"]).strip() for line in lines]
    text = "\n".join(text for text in texts if text)
    if text:
        corners = zip(*(line["bbox"] for line in lines), strict=True)
        x0, y0, x1, y1 = (
            pick(values) for pick, values in zip((min, min, max, max), corners, strict=True)
        )
        yield Block("text", text, (_box(page, (x0, y0, x1, y1), turn),))


def _upright(page: Any, bbox: tuple[float, ...]) -> tuple[float, ...]:
    # MuPDF gives text and pictures on the page as it is before /Rotate.
    rectangle: Any = pymupdf.Rect
    return tuple((rectangle(bbox) * page.rotation_matrix).normalize())


def _box(page: Any, bbox: tuple[float, ...], turn: int) -> Box:
    x0, y0, x1, y1 = (
        min(1.0, max(0.0, value / length))
        for value, length in zip(
            _upright(page, bbox), (page.rect.width, page.rect.height) * 2, strict=True
        )
    )
    for _ in range(turn // 90):
        x0, y0, x1, y1 = 1 - y1, x0, 1 - y0, x1
    return Box(*(round(value * COORDINATE_MAX) for value in (x0, y0, x1, y1)))
