"""PageResults → Documents: text, flat metadata and ids that are the same on every load.

Nothing here knows LangChain or LlamaIndex. Values of the metadata are str, int, float or bool, a
missing value is a missing key, and nothing that changes from run to run is among them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deepseek_ocr_loaders import elements, layout
from deepseek_ocr_loaders.page import PageStatus
from deepseek_ocr_loaders.prompts import prompt_text
from deepseek_ocr_loaders.text import block_text, clean, clean_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deepseek_ocr_loaders.elements import Element
    from deepseek_ocr_loaders.layout import Placed
    from deepseek_ocr_loaders.page import Block, PageResult, SourceInfo
    from deepseek_ocr_loaders.settings import Settings

__all__ = ["EXCLUDED_KEYS", "DocumentBuilder", "DocumentData", "failed_source_document"]

Value = str | int | float | bool

EXCLUDED_KEYS = (
    "source", "file_path", "page", "page_number", "total_pages", "creationdate", "creator",
    "producer", "title", "author", "subject", "keywords", "moddate", "width", "height", "rotation",
    "ocr_engine", "ocr_model", "ocr_status", "ocr_pages", "ocr_error", "ocr_grounded",
    "element_index", "boxes", "pixel_boxes", "layout",
)  # fmt: skip
"""What neither an embedding nor a language model should read; for both lists of LlamaIndex.

A metadata string that is longer than a chunk is an error there, so what stays is short: the file's
name, the page's label, the kind of element and its headings.
"""

_NAMESPACE = uuid.UUID("6f0c6a0e-6c0b-5d0e-9a55-0d5ee9cc0c12")
_LINE_MAX = 500
_ERROR_MAX = 300

# From the worst to the best; a document has the status of its worst page.
_SEVERITY = (
    PageStatus.FAILED, PageStatus.EMPTY, PageStatus.TRUNCATED, PageStatus.REPETITION,
    PageStatus.OK, PageStatus.BLANK,
)  # fmt: skip

_URL = re.compile(
    r"\b([a-z][a-z0-9+.-]{1,15}://)(?:[^\s/@'\"]*@)?([^\s/?#'\":]+)(?::\d+)?([^\s?#'\")]*)[^\s'\")]*"
)
_PORT = re.compile(r"\b(127\.0\.0\.1|localhost|\[::1\]):\d+")
_SECRET = re.compile(
    r"(?i)\b(bearer\s+|(?:api[_-]?key|password|token|secret)\s*[=:]\s*)\S+|\bsk-[\w-]{8,}"
)


@dataclass(frozen=True, slots=True)
class DocumentData:
    """A Document of either framework, before it is one.

    Attributes:
        id: A UUID; the same for the same bytes, page, element and options that change the text.
        text: The content.
        metadata: Flat, and the same on every load.
    """

    id: str
    text: str
    metadata: dict[str, Value]


class DocumentBuilder:
    """Makes the Documents of one source, page after page, in page order.

    Args:
        info: What is known about the source.
        settings: What the run was told; `mode` decides what becomes a Document.
    """

    def __init__(self, info: SourceInfo, settings: Settings) -> None:
        self._info = info
        self._settings = settings
        self._options = _options_of(settings)
        self._headings = elements.Headings()
        self._pages: list[tuple[PageResult, str, list[Placed]]] = []

    def add(self, page: PageResult) -> list[DocumentData]:
        """Give the Documents that are finished with this page.

        A page that failed, has no ink or no text gives one with an empty text, so that the count
        of pages stays right; its `ocr_status` says why. In `element` mode only a page that did
        not go well does.
        """
        if self._settings.mode == "element":
            return self._elements(page)
        text, placed = self._page_text(page)
        if self._settings.mode == "document":
            # The blocks are in `placed`; the answer itself need not be kept.
            self._pages.append((replace(page, raw="", blocks=()), text, placed))
            return []
        return [self._page(page, text, placed)]

    def finish(self) -> list[DocumentData]:
        """Give what is left at the end of the source: in `document` mode, the one Document."""
        if not self._pages:
            return []
        pages, self._pages = self._pages, []
        separator = clean(self._settings.page_separator)
        texts: list[str] = []
        placed: list[Placed] = []
        at = 0
        for page, text, blocks in pages:
            placed += [block.moved(at, page=page.index) for block in blocks]
            texts.append(text)
            at += len(text) + len(separator)
        whole = separator.join(texts)
        metadata = self._source_metadata() | _summary([page for page, _, _ in pages])
        if self._settings.layout:
            metadata["layout"] = layout.to_json(placed, whole)
        return [DocumentData(self._id("document"), whole, metadata)]

    # --- one page ---------------------------------------------------------------------------

    def _page(self, page: PageResult, text: str, placed: list[Placed]) -> DocumentData:
        metadata = self._page_metadata(page)
        if self._settings.layout:
            metadata["layout"] = layout.to_json(placed, text)
        return DocumentData(self._id(page.index), text, metadata)

    def _page_text(self, page: PageResult) -> tuple[str, list[Placed]]:
        if page.status is PageStatus.FAILED:
            return "", []
        if self._settings.output == "raw" and page.raw:
            text = clean(page.raw)
            return text, layout.find(page, text)
        captions = {
            index: elements.captions_of(page.blocks, element)
            for element in elements.group(page.blocks)
            for index in element.blocks
        }
        texts = [
            block_text(block, self._settings, caption=captions[index])
            for index, block in enumerate(page.blocks)
        ]
        return layout.join(page, range(len(texts)), texts)

    # --- elements ---------------------------------------------------------------------------

    def _elements(self, page: PageResult) -> list[DocumentData]:
        made: list[DocumentData] = []
        if page.status is not PageStatus.FAILED:
            for element in elements.group(page.blocks):
                made += self._element(page, element, len(made))
                for index in element.blocks:
                    self._headings.see(page.blocks[index])
        if not made and page.status not in {PageStatus.OK, PageStatus.BLANK}:
            made = [self._page(page, "", [])]
        return made

    def _element(self, page: PageResult, element: Element, number: int) -> list[DocumentData]:
        blocks = [page.blocks[index] for index in element.blocks]
        caption = elements.captions_of(page.blocks, element)
        texts = [block_text(block, self._settings, caption=caption) for block in blocks]
        text, placed = layout.join(page, element.blocks, texts)
        if not text:
            return []
        metadata = self._page_metadata(page)
        metadata["element_type"] = clean_line(element.kind, limit=64)
        metadata["element_index"] = number
        if self._headings.path:
            metadata["heading_path"] = self._headings.path
        metadata |= _boxes(page, blocks)
        if self._settings.layout:
            metadata["layout"] = layout.to_json(placed, text)
        return [DocumentData(self._id(page.index, number), text, metadata)]

    # --- metadata and id --------------------------------------------------------------------

    def _source_metadata(self) -> dict[str, Value]:
        info = self._info
        metadata: dict[str, Value] = {
            "source": clean_line(info.source, limit=4096),
            "file_path": clean_line(info.source, limit=4096),
            "file_name": clean_line(info.file_name, limit=_LINE_MAX),
            "total_pages": info.total_pages,
        }
        for name in ("creationdate", "creator", "producer"):
            metadata[name] = clean_line(info.properties.get(name, ""), limit=_LINE_MAX)
        for name in ("title", "author", "subject", "keywords", "moddate"):
            if value := clean_line(info.properties.get(name, ""), limit=_LINE_MAX):
                metadata[name] = value
        return metadata

    def _page_metadata(self, page: PageResult) -> dict[str, Value]:
        metadata = self._source_metadata()
        metadata["page"] = page.index
        metadata["page_number"] = page.number
        metadata["page_label"] = clean_line(page.label, limit=64) or str(page.number)
        if page.width and page.height:
            metadata |= {"width": page.width, "height": page.height, "rotation": page.rotation}
        if page.engine:
            metadata["ocr_engine"] = clean_line(page.engine, limit=_LINE_MAX)
        if page.model:
            metadata["ocr_model"] = clean_line(page.model, limit=_LINE_MAX)
        metadata["ocr_status"] = page.status.value
        if not page.grounded:
            metadata["ocr_grounded"] = False
        if page.error is not None:
            metadata["ocr_error"] = _error_text(page.error)
        return metadata

    def _id(self, *place: str | int) -> str:
        name = [self._info.content_hash, self._options, *place]
        if place == ("document",):
            name += [str(self._settings.pages), self._settings.page_separator]
        return _uuid(name)


def failed_source_document(source: str, error: Exception) -> DocumentData:
    """Give the record of a source that could not be opened, for `on_error="record"`.

    Args:
        source: The path or address, without secrets.
        error: Why.
    """
    name = clean_line(source, limit=4096)
    metadata: dict[str, Value] = {
        "source": name,
        "file_path": name,
        "file_name": clean_line(re.split(r"[/\\]", name)[-1], limit=_LINE_MAX),
        "creationdate": "",
        "creator": "",
        "producer": "",
        "ocr_status": PageStatus.FAILED.value,
        "ocr_error": _error_text(error),
    }
    return DocumentData(_uuid(["source", source]), "", metadata)


def _uuid(name: Sequence[str | int]) -> str:
    # JSON keeps ["a", "bc"] and ["ab", "c"] apart; surrogates have no UTF-8, so it is ASCII.
    return str(uuid.uuid5(_NAMESPACE, json.dumps(list(name))))


def _options_of(settings: Settings) -> str:
    """Give the options that change what the text says."""
    rotate = settings.rotate
    if isinstance(rotate, Mapping):
        rotated: object = sorted(rotate.items())
    else:
        rotated = "function" if callable(rotate) else rotate
    saved = settings.images == "save" and settings.image_dir is not None
    return json.dumps(
        [
            settings.mode,
            settings.output,
            settings.tables,
            settings.math,
            settings.images,
            settings.image_dir.as_posix() if saved and settings.image_dir is not None else "",
            settings.furniture,
            prompt_text(settings.prompt),
            settings.ocr,
            settings.detail,
            settings.dpi,
            rotated,
        ]
    )


def _boxes(page: PageResult, blocks: Iterable[Block]) -> dict[str, Value]:
    boxes = [box for block in blocks for box in block.boxes]
    if not boxes:
        return {}
    found: dict[str, Value] = {
        "boxes": layout.compact([[box.x1, box.y1, box.x2, box.y2] for box in boxes])
    }
    if page.width and page.height:
        found["pixel_boxes"] = layout.compact(
            [box.pixels(page.width, page.height) for box in boxes]
        )
    return found


def _summary(pages: Sequence[PageResult]) -> dict[str, Value]:
    """Give what the pages of a document have in common, and which of them did not go well."""
    by_status: dict[PageStatus, list[int]] = {}
    for page in pages:
        by_status.setdefault(page.status, []).append(page.number)
    found: dict[str, Value] = {}
    engines = sorted({page.engine for page in pages if page.engine})
    models = sorted({page.model for page in pages if page.model})
    if engines:
        found["ocr_engine"] = clean_line(", ".join(engines), limit=_LINE_MAX)
    if models:
        found["ocr_model"] = clean_line(", ".join(models), limit=_LINE_MAX)
    worst = next(status for status in _SEVERITY if status in by_status)
    found["ocr_status"] = worst.value
    if len(by_status) > 1:
        found["ocr_pages"] = "; ".join(
            f"{status.value} {_ranges(by_status[status])}"
            for status in _SEVERITY
            if status in by_status
        )
    if not all(page.grounded for page in pages):
        found["ocr_grounded"] = False
    errors = [f"page {page.number}: {_error_text(page.error)}" for page in pages if page.error]
    if errors:
        found["ocr_error"] = clean_line("; ".join(errors), limit=_ERROR_MAX)
    return found


def _ranges(numbers: Sequence[int]) -> str:
    """Write page numbers as in `1-3,7`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _error_text(error: Exception) -> str:
    """Say in one line why it failed, without secrets and without what changes from run to run."""
    line = _URL.sub(r"\1\2\3", clean_line(str(error), limit=2000))
    line = _SECRET.sub("…", _PORT.sub(r"\1", line))
    return clean_line(f"{type(error).__name__}: {line}", limit=_ERROR_MAX)
