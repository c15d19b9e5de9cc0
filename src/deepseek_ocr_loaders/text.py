r"""How a block becomes text: the settings `output`, `tables`, `math`, `images` and `furniture`.

By default a block is what the model wrote, byte for byte. What is asked for changes that part
only: tables into pipe tables, the delimiters of maths into dollars. With `math="dollars"` the two
commands that common viewers lack are written out as DeepSeek-OCR's own scripts do: `\coloneqq` as
`:=`, `\eqqcolon` as `=:`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.answer import IMAGE_LABELS
from deepseek_ocr_loaders.markup import outer_tables
from deepseek_ocr_loaders.plain_text import math_spans, to_plain_text
from deepseek_ocr_loaders.tables import html_to_pipe

if TYPE_CHECKING:
    from pathlib import Path

    from deepseek_ocr_loaders.page import Block
    from deepseek_ocr_loaders.settings import Settings

__all__ = ["block_text", "clean", "clean_line", "is_furniture"]

_FURNITURE = frozenset({
    "footer", "footer_image", "header", "header_image", "number", "page_footer", "page_header",
    "page_number",
})  # fmt: skip

_ALT_MAX = 120

# Control characters but for tab, newline and form feed (a page separator); halves of surrogate
# pairs, which no encoder takes.
_CONTROL = re.compile("[\x00-\x08\x0b\x0d-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def block_text(block: Block, settings: Settings, *, caption: str = "") -> str:
    """Give the text of a block; empty where it has none or is to be left out.

    Args:
        block: As the model gave it, or with the name of its saved picture.
        settings: What the run was told.
        caption: The text of the caption that belongs to a picture.
    """
    if settings.furniture == "drop" and is_furniture(block):
        return ""
    if settings.output == "raw":
        return clean(block.text)
    if settings.output == "text":
        text = to_plain_text(block.text)
    else:
        text = block.text
        if settings.math == "dollars":
            text = _with_dollars(text)
        if settings.tables == "markdown":
            text = _with_pipe_tables(text)
    image = _image_text(block, settings, caption) if block.label in IMAGE_LABELS else ""
    return clean(f"{image}\n\n{text}" if image and text else image or text)


def is_furniture(block: Block) -> bool:
    """Tell whether a block is a header, a footer or a page number."""
    return block.label in _FURNITURE


def clean(text: str) -> str:
    """Take away what stores and encoders choke on: control characters and lone surrogates."""
    text = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _SURROGATE.sub("\ufffd", text)


def clean_line(text: str, *, limit: int) -> str:
    """Give a text as one clean line of at most `limit` characters."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _image_text(block: Block, settings: Settings, caption: str) -> str:
    if settings.output == "text":
        return "" if settings.images == "drop" else "[image]"
    if settings.images == "save" and block.image is not None and settings.image_dir is not None:
        alt = clean_line(to_plain_text(caption), limit=_ALT_MAX)
        return f"![{_without_brackets(alt)}]({_link(settings.image_dir, block.image)})"
    return "" if settings.images == "drop" else "<!-- image -->"


def _without_brackets(alt: str) -> str:
    return alt.translate({ord("["): "(", ord("]"): ")", ord("\\"): None})


def _link(folder: Path, name: str) -> str:
    path = (folder / name).as_posix()
    # Spaces and brackets end a link in markdown, unless it stands in angle brackets.
    return f"<{path}>" if re.search(r"[\s()]", path) else path


def _with_pipe_tables(text: str) -> str:
    pieces: list[str] = []
    at = 0
    for start, end in outer_tables(text):
        pieces += (text[at:start].rstrip(), html_to_pipe(text[start:end]))
        at = end
    pieces.append(text[at:].strip() if pieces else text)
    return "\n\n".join(piece for piece in pieces if piece.strip())


def _with_dollars(text: str) -> str:
    pieces: list[str] = []
    at = 0
    for start, end, displayed in math_spans(text):
        mark = "$$" if displayed else "$"
        # A space inside single dollars stops viewers from seeing maths there.
        inner = text[start + 2 : end - 2].strip()
        inner = inner.replace(r"\coloneqq", ":=").replace(r"\eqqcolon", "=:")
        pieces += (text[at:start], mark, inner, mark)
        at = end
    pieces.append(text[at:])
    return "".join(pieces)
