"""From a Document, or a chunk cut from it, back to the page and the boxes that it came from.

It works on Documents and nodes of LangChain and LlamaIndex alike, and imports neither.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageColor, ImageDraw

from deepseek_ocr_loaders.errors import ConfigurationError
from deepseek_ocr_loaders.layout import PROBE_STEP
from deepseek_ocr_loaders.page import COORDINATE_MAX, Box
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

    from fsspec import AbstractFileSystem

    from deepseek_ocr_loaders.settings import Options

__all__ = ["Citation", "cite", "highlight"]

_GAP = "\0"
_PROBES_MIN = 4
"""Fewer probes than this fit by chance."""

_SURE = 64
"""Characters of a chunk from which its probes are taken to be found by more than chance."""


@dataclass(frozen=True, slots=True)
class Citation:
    """One block that a text came from.

    Attributes:
        page: Counted from 0.
        label: What the model calls it; None where it does not say.
        boxes: Where it is on the page; empty where only the page is known.
        start: Where its text begins in the text that was cited, in characters; 0 where the block
            begins earlier. None where only the page is known.
        end: Where it ends there.
    """

    page: int
    label: str | None
    boxes: tuple[Box, ...]
    start: int | None = None
    end: int | None = None

    @property
    def page_number(self) -> int:
        """The page, counted from 1."""
        return self.page + 1


def cite(document: Any) -> list[Citation]:
    """Give the blocks that a Document, node or chunk came from, in reading order.

    A chunk is found in its Document by the offset that its splitter noted (`start_index`,
    `start_char_idx`), else by its characters. One that cannot be found, because it is very short
    or was rewritten, cites all blocks of the Document.

    Args:
        document: A LangChain Document, a LlamaIndex Document, node or scored node, loaded by this
            package; with `layout=True` or `mode="element"` for boxes.

    Raises:
        ConfigurationError: The metadata says neither boxes nor page.
    """
    node = getattr(document, "node", document)
    metadata: Mapping[str, Any] = node.metadata
    page = metadata.get("page")
    if "layout" in metadata:
        return _from_layout(_json(metadata["layout"], "layout"), node, page)
    if page is None:
        msg = (
            "the Document says neither page nor boxes: load it with layout=True, and keep the "
            "metadata when it is split"
        )
        raise ConfigurationError(msg)
    if "boxes" in metadata:
        boxes = _boxes(_json(metadata["boxes"], "boxes"))
        return [Citation(page, metadata.get("element_type"), boxes, 0, len(_text(node)))]
    return [Citation(page, None, ())]


def highlight(
    document: Any,
    *,
    source: object = None,
    page_number: int | None = None,
    fs: AbstractFileSystem | None = None,
    color: str = "#ff8c00",
    **options: Unpack[Options],
) -> Image.Image:
    """Draw the page that a Document or chunk came from, with its blocks marked.

    In a notebook the picture shows itself; `highlight(chunk).save("page.png")` makes a file.

    Args:
        document: As for `cite`.
        source: The document's path, address or bytes, where it is not found at the `source` of
            the metadata any more.
        page_number: Counted from 1, where the text comes from several pages; the first by default.
        fs: The fsspec file system that the path belongs to.
        color: A name or `#rrggbb`.
        **options: As for the loader; `password`, `dpi` and `rotate` are of use here.

    Raises:
        ConfigurationError: Nothing is known about the place, or the text is not from that page.
        SourceError: The document cannot be opened.
        RenderError: The page cannot be drawn.
    """
    metadata: Mapping[str, Any] = getattr(document, "node", document).metadata
    found = cite(document)
    if not found:
        msg = "the Document has no blocks: there is nothing to mark"
        raise ConfigurationError(msg)
    page = found[0].page if page_number is None else page_number - 1
    marked = [citation for citation in found if citation.page == page]
    if not marked:
        pages = ", ".join(str(number) for number in sorted({each.page + 1 for each in found}))
        msg = f"the text does not come from page {page_number}, but from {pages}"
        raise ConfigurationError(msg)
    given = source if source is not None else metadata.get("source")
    if given is None:
        msg = "the metadata has no source: give the document as source="
        raise ConfigurationError(msg)
    settings = Settings.create(options)
    with open_source(given, settings=settings, fs=fs) as opened:
        picture = opened.picture(page)
    with Image.open(io.BytesIO(picture.data)) as encoded:
        image = encoded.convert("RGB")
    # A page that was turned by hand when it was read is drawn as it lies.
    turn = (int(metadata.get("rotation", picture.rotation)) - picture.rotation) % 360
    if turn:
        image = image.rotate(-turn, expand=True)
    return _mark(image, [box for citation in marked for box in citation.boxes], color)


def _mark(image: Image.Image, boxes: Sequence[Box], color: str) -> Image.Image:
    try:
        red, green, blue = ImageColor.getrgb(color)[:3]
    except ValueError as error:
        msg = f"color: {error}"
        raise ConfigurationError(msg) from None
    layer = Image.new("RGBA", image.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(layer)
    line = max(2, image.width // 400)
    for box in boxes:
        left, top, right, bottom = box.pixels(*image.size)
        # Around the text, not over it; also a box without area is seen.
        area = (left - line, top - line, right + line, bottom + line)
        draw.rectangle(
            area, fill=(red, green, blue, 56), outline=(red, green, blue, 255), width=line
        )
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


# --- the layout ---------------------------------------------------------------------------


def _from_layout(entries: Any, node: Any, page: int | None) -> list[Citation]:
    entries = [entry for entry in entries if isinstance(entry, dict)]
    if page is None and not all("page" in entry for entry in entries):
        msg = "the layout does not say on which page its blocks are"
        raise ConfigurationError(msg)
    text = _text(node)
    at = _offset(entries, node, text)
    citations: list[Citation] = []
    for entry in entries:
        boxes = _boxes(entry.get("boxes", ()))
        start, end = entry.get("start"), entry.get("end")
        within: tuple[int, int] | None = None
        if at is not None:
            if start is None or start >= at + len(text) or end <= at:
                continue
            within = (max(start - at, 0), min(end - at, len(text)))
        where = entry.get("page", page)
        citations.append(Citation(where, entry.get("label"), boxes, *(within or ())))
    return citations


def _offset(entries: Sequence[Mapping[str, Any]], node: Any, text: str) -> int | None:
    """Find where in its Document a chunk begins; None where that cannot be told."""
    probes = _probes(entries)
    noted = node.metadata.get("start_index", getattr(node, "start_char_idx", None))
    length = max((entry["end"] for entry in entries if "end" in entry), default=0)
    for at in (noted, 0 if len(text) >= length else None):
        # Only an offset at which the characters are the same is believed.
        if isinstance(at, int) and at >= 0:
            first = -at % PROBE_STEP
            if _fits(probes, text[first : length - at : PROBE_STEP], (at + first) // PROBE_STEP):
                return at
    places = [
        place
        for phase in range(PROBE_STEP)
        for place in _search(probes, text[phase::PROBE_STEP], phase)
    ]
    if len(places) == 1 or (places and len(text) >= _SURE):
        return min(places)
    return None


def _probes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Put the probes of all blocks together; what is between blocks is empty and fits all."""
    length = max((entry["end"] for entry in entries if "end" in entry), default=0)
    probes = [""] * -(-length // PROBE_STEP)
    for entry in entries:
        if "start" in entry:
            first = -(-entry["start"] // PROBE_STEP)
            probes[first : first + len(entry["probe"])] = entry["probe"]
    return probes


def _search(probes: Sequence[str], pattern: str, phase: int) -> list[int]:
    if len(pattern) < _PROBES_MIN:
        return []
    signs = "".join(f"[{re.escape(sign)}{_GAP}]" for sign in pattern[:64])
    haystack = "".join(probe or _GAP for probe in probes)
    return [
        found.start() * PROBE_STEP - phase
        for found in re.finditer(f"(?=({signs}))", haystack, re.DOTALL)
        if found.start() * PROBE_STEP >= phase
        and len(found[1]) - found[1].count(_GAP) >= _PROBES_MIN
        and _fits(probes, pattern, found.start())
    ]


def _fits(probes: Sequence[str], pattern: str, index: int) -> bool:
    there = probes[index : index + len(pattern)]
    return len(there) == len(pattern) and all(
        probe in {"", sign} for probe, sign in zip(there, pattern, strict=True)
    )


def _text(node: Any) -> str:
    text = getattr(node, "page_content", None)
    return text if isinstance(text, str) else str(getattr(node, "text", ""))


def _json(value: Any, name: str) -> Any:
    try:
        found = json.loads(value)
    except (TypeError, ValueError) as error:
        msg = f"the metadata's {name} is not what this package wrote: {error}"
        raise ConfigurationError(msg) from None
    if not isinstance(found, list):
        msg = f"the metadata's {name} is not what this package wrote: not a list"
        raise ConfigurationError(msg)
    return found


def _boxes(given: Sequence[Sequence[int]]) -> tuple[Box, ...]:
    return tuple(Box(*(min(max(int(edge), 0), COORDINATE_MAX) for edge in box)) for box in given)
