"""What an answer amounts to: its status, what of it is kept, and its blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepseek_ocr_loaders import markup
from deepseek_ocr_loaders.page import PageStatus
from deepseek_ocr_loaders.prompts import is_grounded
from deepseek_ocr_loaders.repetition import loop_span

if TYPE_CHECKING:
    from deepseek_ocr_loaders.page import Block
    from deepseek_ocr_loaders.repetition import Evidence

__all__ = ["IMAGE_LABELS", "Answer", "interpret"]

IMAGE_LABELS = frozenset({
    "chart", "figure", "footer_image", "header_image", "image", "logo", "picture", "seal", "stamp",
})  # fmt: skip
"""Labels of blocks that are pictures: without text they still say something."""

_CUT_OFF = frozenset({"length", "max_tokens", "abort", "content_filter", "error"})
"""Finish reasons after which more would have come."""

_EVIDENCE: dict[str | None, Evidence] = {"repetition": "stopped", "length": "cut"}

_LOOPS_MAX = 8

# A tag that was cut off, from its end backwards: in it, in its coordinates, in its label.
_PARTIAL_TAG = re.compile(r"<\|[/a-z]{0,4}\|?\Z|(?:\A|(?<=[\n>]))<\Z")
_PARTIAL_DET = re.compile(r"<\|det\|>[^<]{0,2000}<?\Z")
_PARTIAL_REF = re.compile(r"<\|ref\|>[^<\n]{0,80}<?\Z")
_BARE_REF = re.compile(r"<\|ref\|>[^<\n]{0,80}<\|/ref\|>\s*\Z")
_PARTIAL_BARE = re.compile(r"^[a-z_]{1,32}\[\[[0-9, \[\]]{0,200}\Z", re.MULTILINE)
_PARTIAL_HTML = re.compile(r"</?[a-z]{0,10}(?:\s[^<>\n]{0,200})?\Z", re.IGNORECASE)

_TABLE_TAG = re.compile(r"<(/?)(table|thead|tbody|tfoot|tr|td|th)\b[^<>]*>", re.IGNORECASE)
_OPEN_TAGS_MAX = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, understood.

    Attributes:
        status: How the reading ended.
        blocks: The content in reading order.
        text_kept: What the blocks were read from: the answer without loops, without what is left
            of a tag that was cut, and with a table that was cut closed.
        grounded: False where the prompt asked for boxes and the answer has no tag.
    """

    status: PageStatus
    blocks: tuple[Block, ...]
    text_kept: str
    grounded: bool


def interpret(
    raw: str | None, *, finish_reason: str | None, has_ink: bool, prompt: str = "markdown"
) -> Answer:
    """Give what an answer amounts to; it never raises, whatever the model said.

    Args:
        raw: What the model said; None where the reply had no content.
        finish_reason: What the server said about its end: `stop`, `length`, `repetition`.
        has_ink: Whether there is anything on the page.
        prompt: The short name or the words that were sent.
    """
    text = markup.without_leaked_tokens(raw or "")
    kept = _without_loops(text, finish_reason)
    looped = kept != text or finish_reason == "repetition"
    cut = finish_reason in _CUT_OFF
    if looped or cut:
        kept = _close_table(_without_partial_tag(kept, prompt))
    blocks = markup.parse(kept, prompt=prompt)
    if looped:
        status = PageStatus.REPETITION
    elif cut:
        status = PageStatus.TRUNCATED
    elif has_ink and not any(map(_says_something, blocks)):
        status = PageStatus.EMPTY
    else:
        status = PageStatus.OK
    tagged = markup.has_tags(blocks) or "<|ref|>" in text or "<|det|>" in text
    grounded = tagged or not is_grounded(prompt) or not kept.strip()
    return Answer(status, blocks, kept, grounded)


def _says_something(block: Block) -> bool:
    return bool(block.text) or block.label in IMAGE_LABELS


def _without_loops(text: str, finish_reason: str | None) -> str:
    """Keep what stands before each loop and after it, and one round of it."""
    for _ in range(_LOOPS_MAX):
        span = loop_span(text, evidence=_EVIDENCE.get(finish_reason, "none"))
        if span is None:
            break
        text = text[: span[0]] + text[span[1] :]
    return text


def _without_partial_tag(text: str, prompt: str) -> str:
    text = _without_tail(_PARTIAL_TAG, text)
    text = _without_tail(_PARTIAL_DET, text)
    if markup.names_text(prompt):
        return text  # what a ref holds is text of the page, complete or not
    text = _without_tail(_PARTIAL_REF, text)
    text = _without_tail(_BARE_REF, text)
    if is_grounded(prompt) and "<|ref|>" not in text:
        text = _without_tail(_PARTIAL_BARE, text)
    return text


def _without_tail(pattern: re.Pattern[str], text: str) -> str:
    """Look in the last part of the text only: what is sought there is short."""
    return text[:-2100] + pattern.sub("", text[-2100:])


def _close_table(text: str) -> str:
    """Close the HTML table that the text ends in, if it does."""
    lowered = text.lower()
    # Nested tables are closed together, one of an earlier block is left alone.
    start = lowered.find("<table", max(0, lowered.rfind("<|/det|>")))
    start = start if start >= 0 else lowered.rfind("<table")
    if start < 0:
        return text
    closed = markup.outer_tables(text)
    if closed and lowered.rfind("<table") < closed[-1][1]:
        return text
    text = _without_tail(_PARTIAL_HTML, text)
    opened: list[str] = []
    for tag in _TABLE_TAG.finditer(text, min(start, len(text))):
        name = tag[2].lower()
        if not tag[1]:
            opened.append(name)
        elif name in opened:
            while opened.pop() != name:
                pass
    if len(opened) > _OPEN_TAGS_MAX:
        return text
    return text + "".join(f"</{name}>" for name in reversed(opened))
