"""What is known about one page after it was read: its picture, blocks, status and cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepseek_ocr_loaders.errors import DeepSeekOCRError

__all__ = [
    "COORDINATE_MAX",
    "Attempt",
    "Block",
    "Box",
    "PageResult",
    "PageStatus",
    "Picture",
    "SourceInfo",
    "Usage",
]

COORDINATE_MAX = 999
"""The model's boxes run from 0 to 999 on each axis (DeepSeek-OCR's own `/ 999`)."""


class PageStatus(StrEnum):
    """How the reading of a page ended; the value of `ocr_status`."""

    OK = "ok"
    BLANK = "blank"
    """No ink: not sent."""
    TRUNCATED = "truncated"
    """Cut at the token limit; the text up to there is kept."""
    REPETITION = "repetition"
    """Ran into a loop; the text up to the loop is kept."""
    EMPTY = "empty"
    """There is ink on the page, but the answer has no text."""
    FAILED = "failed"
    """No answer; see the error."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle on the page, from 0 to 999 on each axis of the picture that was sent.

    Always sorted and inside the page: `0 <= x1 <= x2 <= 999`, likewise y. It may have no area.
    """

    x1: int
    y1: int
    x2: int
    y2: int

    def pixels(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Give left, top, right, bottom in pixels of a picture of `width` × `height` pixels."""
        return (
            round(self.x1 * width / COORDINATE_MAX),
            round(self.y1 * height / COORDINATE_MAX),
            round(self.x2 * width / COORDINATE_MAX),
            round(self.y2 * height / COORDINATE_MAX),
        )


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of the answer: what the model calls it, where it is, what it says.

    Attributes:
        label: The model's word for it (`text`, `title`, `table`, …); None for text outside tags.
        text: The content as the model wrote it, without tags, trimmed of surrounding blank lines.
        boxes: Where it is; empty where the model gave no usable box.
        flags: What was wrong with its tags (`bad_box`, `reversed_box`, `clamped_box`, …).
        image: Name of the cropped picture in `image_dir`, where one was saved.
    """

    label: str | None
    text: str
    boxes: tuple[Box, ...] = ()
    flags: tuple[str, ...] = ()
    image: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the server counted for a page, over all of its attempts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Picture:
    """A page as it is sent: encoded, upright, 8-bit RGB or grey on white.

    Attributes:
        data: The encoded bytes.
        media_type: For example `image/png`.
        width: In pixels; boxes refer to it.
        height: In pixels; boxes refer to it.
        rotation: Degrees clockwise that the page was turned to be upright (0, 90, 180, 270).
        has_ink: False where nothing is drawn on the page.
    """

    data: bytes = field(repr=False)
    media_type: str
    width: int
    height: int
    rotation: int = 0
    has_ink: bool = True


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """What is known about a document before its pages are read.

    Attributes:
        source: The path or address as given, without the secrets of its query.
        file_name: The last part of it.
        content_hash: SHA-256 of the bytes, in hex; the base of all ids.
        kind: `pdf` or `image`.
        total_pages: Pages of a PDF, frames of a picture.
        properties: `creationdate`, `creator`, `producer` always (may be empty); `title`,
            `author`, `subject`, `keywords`, `moddate` if present. Dates are ISO 8601.
    """

    source: str
    file_name: str
    content_hash: str
    kind: str
    total_pages: int
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to read a page, for the report.

    Attributes:
        method: What was tried: `plain`, `ngram`, `sampling`, `halves`.
        outcome: How it ended, in `PageStatus` words.
        finish_reason: What the server said (`stop`, `length`, `repetition`).
        requests: How many requests it took, repeated ones included.
        seconds: Wall time.
        usage: Tokens.
    """

    method: str
    outcome: PageStatus
    finish_reason: str
    requests: int
    seconds: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class PageResult:
    """One page, read: everything that a Document is made of.

    Attributes:
        index: The page, counted from 0.
        label: The page number as printed, from the document's own labels; else `index + 1`.
        width: Of the picture that boxes refer to, in pixels; 0 where the page was not drawn.
        height: Likewise.
        rotation: Degrees clockwise that the page was turned to be upright.
        status: How the reading ended.
        blocks: The content in reading order.
        raw: What the model said, byte for byte.
        engine: What read the page: `vllm`, `rapidocr`, `text_layer`; empty where nothing did.
        model: The model's name; empty where nothing read it.
        grounded: False where boxes were asked for and none came.
        usage: Tokens over all attempts.
        attempts: What was tried, in order; empty for a page that was not sent.
        cached: True where it came from the cache.
        error: Why it failed, where the status is `failed`.
    """

    index: int
    label: str
    width: int = 0
    height: int = 0
    rotation: int = 0
    status: PageStatus = PageStatus.OK
    blocks: tuple[Block, ...] = ()
    raw: str = ""
    engine: str = ""
    model: str = ""
    grounded: bool = True
    usage: Usage = Usage()
    attempts: tuple[Attempt, ...] = ()
    cached: bool = False
    error: DeepSeekOCRError | None = None

    @property
    def number(self) -> int:
        """The page, counted from 1."""
        return self.index + 1
