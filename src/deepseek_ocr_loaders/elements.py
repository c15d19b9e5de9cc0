"""Blocks → elements: a caption stays with its figure or table, and each knows its headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.answer import IMAGE_LABELS
from deepseek_ocr_loaders.plain_text import to_plain_text
from deepseek_ocr_loaders.text import clean_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepseek_ocr_loaders.page import Block

__all__ = ["Element", "Headings", "captions_of", "group"]

_TITLES = {"title": 1, "doc_title": 1, "sub_title": 2, "subtitle": 2, "paragraph_title": 2,
           "section_header": 2}  # fmt: skip
_MARKDOWN_HEADING = re.compile(r"^[ \t]{0,3}(#{1,6})[ \t]+(\S.*)$", re.MULTILINE)
# A page number that the model took for a title says nothing about what follows it.
_PAGE_NUMBER = re.compile(
    r"\W*(?:page|seite|p\.|第)?\s*\d+\s*(?:(?:of|/|von)\s*\d+|页|頁)?\W*", re.IGNORECASE
)
# The model counts its # unevenly; the number that the author gave tells the depth.
_SECTION_NUMBER = re.compile(r"(\d{1,2}(?:\.\d{1,2})*)\.?\s+\D")
_CAPTION = re.compile(r"(?:(\w+)_)?(?:caption|footnote)")
_TABLE = re.compile(r"<table\b", re.IGNORECASE)

_HEADING_MAX = 80
_PATH_MAX = 160


@dataclass(frozen=True, slots=True)
class Element:
    """Blocks that belong together: their places on the page, and what they are."""

    kind: str
    blocks: tuple[int, ...]


def group(blocks: Sequence[Block]) -> list[Element]:
    """Give the elements of a page, in its order.

    A caption joins the figure or table right before it, else the one right after it. It may hold
    the table itself: the model puts the tag of a table before that of its caption, and then both
    texts.
    """
    elements: list[Element] = []
    index = 0
    while index < len(blocks):
        kind = _kind(blocks[index])
        members = [index]
        index += 1
        if index < len(blocks) and _belongs(blocks[members[0]], blocks[index]):
            kind = _kind(blocks[index])
            members.append(index)
            index += 1
        while index < len(blocks) and _may_follow(blocks, members, index):
            members.append(index)
            index += 1
        elements.append(Element(kind, tuple(members)))
    return elements


def captions_of(blocks: Sequence[Block], element: Element) -> str:
    """Give the text of the captions in an element."""
    return " ".join(
        blocks[index].text for index in element.blocks if _captioned(blocks[index]) is not None
    )


def _kind(block: Block) -> str:
    if _captioned(block) is not None and _TABLE.search(block.text):
        return "table"
    return block.label or "text"


def _captioned(block: Block) -> str | None:
    """Give what a caption is a caption of (`table`, `image`), empty where it does not say."""
    found = _CAPTION.fullmatch(block.label or "")
    return None if found is None else found[1] or ""


def _belongs(caption: Block, block: Block) -> bool:
    of = _captioned(caption)
    if of is None:
        return False
    if block.label == "table":
        # A caption that holds its own table needs no other.
        return of in {"", "table"} and not _TABLE.search(caption.text)
    return block.label in IMAGE_LABELS and of != "table"


def _may_follow(blocks: Sequence[Block], members: list[int], index: int) -> bool:
    """Tell whether a caption belongs to the element before it rather than after it."""
    block, first = blocks[index], blocks[members[0]]
    of = _captioned(block)
    owner = next((blocks[at] for at in members if _captioned(blocks[at]) is None), first)
    if of is None or (owner.label != "table" and owner.label not in IMAGE_LABELS):
        return False
    if (owner.label == "table") != (of == "table") and of:
        return False
    if _TABLE.search(block.text):
        return not owner.text  # the table that the tag before it announced
    has_caption = len(members) > 1
    is_footnote = (block.label or "").endswith("footnote")
    return is_footnote or not has_caption


class Headings:
    """The headings that stand over what comes next, carried from page to page."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    @property
    def path(self) -> str:
        """The headings from the outermost to the innermost, with ` > ` between them."""
        path = " > ".join(text for _, text in self._open)
        return path if len(path) <= _PATH_MAX else "… " + path[-(_PATH_MAX - 2) :].lstrip()

    def see(self, block: Block) -> None:
        """Take in a block that was passed."""
        title = _TITLES.get(block.label or "")
        if title is not None:
            marked = _MARKDOWN_HEADING.match(block.text)
            level = len(marked[1]) if marked else title
            self._enter(level, block.text)
        elif "#" in block.text:
            for marked in _MARKDOWN_HEADING.finditer(block.text):
                self._enter(len(marked[1]), marked[2])

    def _enter(self, level: int, text: str) -> None:
        heading = clean_line(to_plain_text(text[:1000]), limit=_HEADING_MAX)
        if not heading or _PAGE_NUMBER.fullmatch(heading):
            return
        if numbered := _SECTION_NUMBER.match(heading):
            level = 2 + numbered[1].count(".")
        while self._open and self._open[-1][0] >= level:
            self._open.pop()
        self._open.append((level, heading))
