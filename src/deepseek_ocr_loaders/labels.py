"""The page numbers that a PDF prints on its pages: i, ii, 1, 2, A-1 (PDF 32000-1, 12.4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["page_label"]

_ROMAN = (
    (1000, "m"),
    (900, "cm"),
    (500, "d"),
    (400, "cd"),
    (100, "c"),
    (90, "xc"),
    (50, "l"),
    (40, "xl"),
    (10, "x"),
    (9, "ix"),
    (5, "v"),
    (4, "iv"),
    (1, "i"),
)
_MOST = 100_000
"""Beyond this a number is written in digits: letters and thousands would fill pages."""


def page_label(rules: Sequence[Mapping[str, Any]], index: int) -> str:
    """Give the label of a page, or its number from 1 where the document prints none.

    Args:
        rules: As PyMuPDF's `Document.get_page_labels` gives them.
        index: The page, counted from 0.
    """
    rule = max(
        (rule for rule in rules if rule["startpage"] <= index),
        key=lambda rule: rule["startpage"],
        default=None,
    )
    if rule is None:
        return str(index + 1)
    number = index - rule["startpage"] + max(1, rule.get("firstpagenum") or 1)
    label = f"{rule.get('prefix') or ''}{_count(number, rule.get('style') or '')}"
    return label if label.strip() else str(index + 1)


def _count(number: int, style: str) -> str:
    if style in {"R", "r"} and number < _MOST:
        text = _roman(number)
    elif style in {"A", "a"} and number < _MOST:
        # a to z, then aa to zz, then aaa, as the standard has it.
        text = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
    elif style:
        return str(number)
    else:
        return ""
    return text.upper() if style.isupper() else text


def _roman(number: int) -> str:
    text = ""
    for value, letters in _ROMAN:
        count, number = divmod(number, value)
        text += letters * count
    return text
