"""What every Document of every mode must fulfil, whatever page it came from."""

from __future__ import annotations

import json
import math
import re
import uuid
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.documents import EXCLUDED_KEYS
from deepseek_ocr_loaders.page import PageStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

ALWAYS = {"source", "file_path", "creationdate", "creator", "producer", "ocr_status"}
ON_A_PAGE = {"page", "page_number", "page_label", "total_pages"}
LOOKED_AT_TOKENS = 60
ERROR_MAX = 300

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_TEXT_CONTROL = re.compile("[\x00-\x08\x0b\x0d-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SECRET = re.compile(r"://[^/\s]*@|[?&](?:sig|token|key|password|signature)=", re.IGNORECASE)


def check_document(text: str, metadata: Mapping[str, object], id_: str | None) -> None:
    """Assert that a Document keeps the contract; the message names the key that does not."""
    assert isinstance(text, str)
    assert not _TEXT_CONTROL.search(text), f"control character in the text: {text!r}"
    assert not _SURROGATE.search(text), "lone surrogate in the text"
    text.encode("utf-8")
    _check_id(id_)
    for key, value in metadata.items():
        _check_value(key, value)
    assert json.loads(json.dumps(dict(metadata), allow_nan=False)) == dict(metadata)
    missing = ALWAYS - set(metadata)
    assert not missing, f"missing: {missing}"
    _check_page(metadata)
    _check_status(text, metadata)
    _check_structures(text, metadata)
    _check_length(metadata)


def _check_id(id_: str | None) -> None:
    assert isinstance(id_, str), "no id"
    assert str(uuid.UUID(id_)) == id_, f"not a UUID: {id_}"


def _check_value(key: object, value: object) -> None:
    assert isinstance(key, str), f"key {key!r}"
    assert re.fullmatch(r"[a-z][a-z0-9_]*", key), f"key {key!r}"
    # The exact types: a subclass (an enum, a numpy number) is not what a store expects.
    assert type(value) in {str, int, float, bool}, f"{key} is a {type(value).__name__}"
    if isinstance(value, float):
        assert math.isfinite(value), f"{key} is {value}"
    if isinstance(value, str):
        assert not _CONTROL.search(value), f"control character in {key}: {value!r}"
        assert not _SURROGATE.search(value), f"lone surrogate in {key}"
        assert not _SECRET.search(value), f"secret in {key}"


def _check_page(metadata: Mapping[str, object]) -> None:
    if "page" not in metadata:
        assert not {"page_number", "page_label"} & set(metadata)
        return
    assert set(metadata) >= ON_A_PAGE
    page, number, total = metadata["page"], metadata["page_number"], metadata["total_pages"]
    assert isinstance(page, int)
    assert isinstance(total, int)
    assert number == page + 1
    assert 0 <= page < total
    assert isinstance(metadata["page_label"], str)
    assert metadata["page_label"]
    if "width" in metadata:
        assert isinstance(metadata["width"], int)
        assert isinstance(metadata["height"], int)
        assert metadata["width"] > 0
        assert metadata["height"] > 0
        assert metadata["rotation"] in {0, 90, 180, 270}


def _check_status(text: str, metadata: Mapping[str, object]) -> None:
    status = metadata["ocr_status"]
    assert status in {known.value for known in PageStatus}, status
    if status == "failed":
        assert metadata["ocr_error"]
        assert len(str(metadata["ocr_error"])) <= ERROR_MAX
        if "page" in metadata:
            assert text == "", "an error must never be mistaken for text of the page"
    else:
        assert "ocr_error" not in metadata
    if status == "empty" and "page" in metadata:
        assert not text.strip()


def _check_structures(text: str, metadata: Mapping[str, object]) -> None:
    for name in ("boxes", "pixel_boxes"):
        for box in json.loads(str(metadata.get(name, "[]"))):
            _check_box(box, 999 if name == "boxes" else None)
    at = 0
    for entry in json.loads(str(metadata.get("layout", "[]"))):
        for box in entry["boxes"]:
            _check_box(box, 999)
        assert ("page" in entry) != ("page" in metadata)
        if "start" in entry:
            assert at <= entry["start"] < entry["end"] <= len(text)
            at = entry["end"]


def _check_box(box: list[int], highest: int | None) -> None:
    x1, y1, x2, y2 = box
    assert 0 <= x1 <= x2
    assert 0 <= y1 <= y2
    if highest is not None:
        assert x2 <= highest
        assert y2 <= highest


def _check_length(metadata: Mapping[str, object]) -> None:
    looked_at = "\n".join(
        f"{key}: {value}"
        for key, value in metadata.items()
        if key not in EXCLUDED_KEYS and key != "file_name"
    )
    # A token is a word or a sign, and a word of more than six letters is more than one.
    pieces = re.findall(r"\w{1,6}|[^\w\s]", looked_at)
    assert len(pieces) < LOOKED_AT_TOKENS, looked_at
