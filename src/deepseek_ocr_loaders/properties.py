"""A document's own properties, as metadata: plain text, and dates in ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["clean_text", "document_properties", "iso_date"]

_DATE = re.compile(
    r"(?:D:)?\s*(\d{4})[-/.:]?(\d{2})?[-/.:]?(\d{2})?[T\s]*(\d{2})?:?(\d{2})?:?(\d{2})?"
    r"(?:\.\d+)?\s*(?:(Z)|([+-])(\d{1,2})'?:?(\d{2})?'?)?",
    re.ASCII | re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_LONGEST = 1000
"""Characters of one property: a subject of a megabyte would fill every chunk of an index."""


def clean_text(value: object) -> str:
    """Give `value` as text that JSON, databases and terminals take: no control characters."""
    return _CONTROL.sub("", str(value or "")).strip()[:_LONGEST]


def iso_date(value: object) -> str:
    """Give a PDF date such as `D:20240131120000+01'00'` in ISO 8601, as far as it can be read.

    Writers break this format in every way, so what is missing is left out and what is impossible
    is given back as it stands.
    """
    text = clean_text(value)
    found = _DATE.match(text)
    if not found:
        return text
    year, *rest = (int(group) if group else None for group in found.groups()[:6])
    month, day, hour, minute, second = rest
    _, _, _, _, _, _, zulu, sign, off_hours, off_minutes = found.groups()
    try:
        moment = datetime(
            year or 0,
            month or 1,
            day or 1,
            hour or 0,
            minute or 0,
            min(second or 0, 59),
            tzinfo=UTC,
        )
        if sign:
            offset = timedelta(hours=int(off_hours), minutes=int(off_minutes or 0))
            moment = moment.replace(tzinfo=timezone(-offset if sign == "-" else offset))
    except ValueError:
        return text
    if hour is None:
        return moment.date().isoformat()
    return moment.isoformat() if sign or zulu else moment.replace(tzinfo=None).isoformat()


def document_properties(metadata: Mapping[str, object] | None) -> dict[str, str]:
    """Give the properties of a document from MuPDF's metadata; None for a picture.

    Returns:
        `creationdate`, `creator` and `producer` always, the others where the document has them.
    """
    given = metadata or {}
    found = {
        "creationdate": iso_date(given.get("creationDate")),
        "creator": clean_text(given.get("creator")),
        "producer": clean_text(given.get("producer")),
    }
    optional = {
        name: clean_text(given.get(name)) for name in ("title", "author", "subject", "keywords")
    }
    optional["moddate"] = iso_date(given.get("modDate"))
    return found | {name: value for name, value in optional.items() if value}
