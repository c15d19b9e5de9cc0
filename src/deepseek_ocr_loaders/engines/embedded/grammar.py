"""Blocks → the text that DeepSeek-OCR would write for the same prompt."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.page import COORDINATE_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deepseek_ocr_loaders.engines.embedded.layout import TextBlock
    from deepseek_ocr_loaders.engines.embedded.recognise import Line

__all__ = ["answer", "strip_special_tokens"]

_HEADING = {"title": "# ", "sub_title": "## "}

# A page may show any text, also the model's own tags; only we write tags.
_TAG = re.compile(r"<(?=[|｜])|(?<=[|｜])>")

_REACH = 0.2
"""The models find the ink; the height of the font reaches this much further, up and down."""

_SPECIAL = re.compile(r"<\|/?(?:ref|det|grounding)\|>|</?t[dr]>")


def answer(prompt: str, blocks: Sequence[TextBlock], width: int, height: int) -> str:
    """Give the answer to a prompt.

    Args:
        prompt: One of DeepSeek-OCR's own, or any other: with `<|grounding|>` in it, it is
            answered with boxes, without it by plain text. A figure is not described, only read.
        blocks: In reading order.
        width: Of the picture, in pixels.
        height: Of the picture, in pixels.
    """
    place = re.search(r"<\|ref\|>(.*?)<\|/ref\|>", prompt, re.DOTALL)
    if place:
        return _locate(place[1], [line for b in blocks for line in b.lines], width, height)
    if "<|grounding|>" not in prompt:
        return "\n\n".join(_harmless(block.text) for block in blocks)
    if re.search(r"\bOCR\b", prompt):
        lines = [line for block in blocks for line in block.lines]
        return "\n".join(_tag(line.text, [_corners([line])], width, height) for line in lines)
    return "\n\n".join(
        f"{_tag(block.label, [_corners(block.lines)], width, height)}\n"
        f"{_HEADING.get(block.label, '')}{_harmless(block.text)}  "
        for block in blocks
    )


def strip_special_tokens(text: str) -> str:
    """Take out what vLLM takes out where `skip_special_tokens` is not false."""
    return _SPECIAL.sub("", text)


def _harmless(text: str) -> str:
    return _TAG.sub(lambda match: "< " if match[0] == "<" else " >", text)


Corners = tuple[float, float, float, float]


def _corners(lines: Iterable[Line]) -> Corners:
    """Give the box around lines, in pixels."""
    left, top, right, bottom = zip(
        *(
            (line.x1, line.y1 - _REACH * line.height, line.x2, line.y2 + _REACH * line.height)
            for line in lines
        ),
        strict=True,
    )
    return min(left), min(top), max(right), max(bottom)


def _tag(label: str, boxes: Iterable[Corners], width: int, height: int) -> str:
    places = ", ".join(str(_normalised(box, width, height)) for box in boxes)
    return f"<|ref|>{_harmless(label)}<|/ref|><|det|>[{places}]<|/det|>"


def _normalised(box: Corners, width: int, height: int) -> list[int]:
    """Give a box from 0 to 999 on each axis that covers the box in pixels."""
    across, down = COORDINATE_MAX / width, COORDINATE_MAX / height
    low = (math.floor(box[0] * across), math.floor(box[1] * down))
    high = (math.ceil(box[2] * across), math.ceil(box[3] * down))
    return [min(max(value, 0), COORDINATE_MAX) for value in (*low, *high)]


def _locate(wanted: str, lines: Sequence[Line], width: int, height: int) -> str:
    """Give the boxes of every place where a text stands, also across line ends."""
    letters: list[str] = []
    owners: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        for index, character in enumerate(line.text):
            for letter in _folded(character):
                letters.append(letter)
                owners.append((number, index))
    page, needle = "".join(letters), _folded(wanted)
    boxes: list[Corners] = []
    at = page.find(needle) if needle else -1
    while at >= 0:
        boxes += _pieces(owners[at : at + len(needle)], lines)
        at = page.find(needle, at + len(needle))
    return _tag(wanted, boxes, width, height) if boxes else ""


def _folded(text: str) -> str:
    """Fold what does not matter when a text is looked for: case, width, spaces."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _pieces(owners: Sequence[tuple[int, int]], lines: Sequence[Line]) -> list[Corners]:
    boxes: list[Corners] = []
    for number in dict.fromkeys(owner[0] for owner in owners):
        line = lines[number]
        indexes = [index for owner, index in owners if owner == number]
        left, right = _edges(line, min(indexes), max(indexes))
        x1, y1, x2, y2 = _corners([line])
        boxes.append((x1 + left * (x2 - x1), y1, x1 + right * (x2 - x1), y2))
    return boxes


def _edges(line: Line, first: int, last: int) -> tuple[float, float]:
    """Give where the letters from `first` to `last` begin and end along their line, 0 to 1."""
    places = line.places
    if len(places) != len(line.text):
        return first / len(line.text), (last + 1) / len(line.text)
    left = (places[first - 1] + places[first]) / 2 if first else 0.0
    right = (places[last] + places[last + 1]) / 2 if last + 1 < len(places) else 1.0
    return left, right
