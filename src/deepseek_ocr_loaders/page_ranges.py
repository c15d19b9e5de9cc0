"""Which pages are asked for: `"1-3,7,10-"` or a list, counted from 1 as a PDF viewer does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator

from deepseek_ocr_loaders.errors import ConfigurationError

__all__ = ["Pages", "parse_pages", "select_pages"]

_PART = re.compile(r"(\d{1,9})?\s*(-)?\s*(\d{1,9})?", re.ASCII)

PageRange = tuple[int, int | None]


def parse_pages(pages: object) -> tuple[PageRange, ...] | None:
    """Give the ranges of page numbers, first and last included; None stands for all pages.

    Args:
        pages: None, a page number, a text such as `"1-3,7,10-"`, or a sequence of page numbers.

    Raises:
        ConfigurationError: It names no page, a page below 1, or a range that runs backwards.
    """
    if pages is None:
        return None
    if isinstance(pages, str):
        parts: list[object] = list(pages.split(","))
    elif isinstance(pages, int) or not isinstance(pages, Sequence):
        parts = [pages]
    else:
        parts = list(pages)
    if not parts:
        msg = "pages names no page: leave it out to read all of them"
        raise ConfigurationError(msg)
    return tuple(_parse_part(part) for part in parts)


def _parse_part(part: object) -> PageRange:
    msg = f"pages: {part!r} is not a page number from 1 or a range such as 1-3 or 10-"
    if isinstance(part, (tuple, list)) and len(part) == 2:  # already parsed, or from JSON
        first, last = part
    elif isinstance(part, bool):
        raise ConfigurationError(msg)
    elif isinstance(part, int):
        first = last = part
    elif isinstance(part, str) and (found := _PART.fullmatch(part.strip())):
        start, dash, end = found.groups()
        if start is None and end is None:
            raise ConfigurationError(msg)
        first = int(start or 1)
        last = int(end) if end else (None if dash else first)
    else:
        raise ConfigurationError(msg)
    if not isinstance(first, int) or first < 1 or (last is not None and last < first):
        raise ConfigurationError(msg)
    return first, last


def select_pages(ranges: tuple[PageRange, ...] | None, total: int) -> list[int]:
    """Give the indexes (from 0) that the ranges select of `total` pages, ascending, each once.

    Pages beyond the end select nothing; the caller reports when nothing is left.
    """
    if ranges is None:
        return list(range(total))
    chosen: set[int] = set()
    for first, last in ranges:
        chosen.update(range(first - 1, total if last is None else min(last, total)))
    return sorted(chosen)


Pages = Annotated[tuple[PageRange, ...] | None, BeforeValidator(parse_pages)]
