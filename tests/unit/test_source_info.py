"""What is known of a document: labels (fault 41), properties, hash, and where it came from."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from support.documents import A4, WORD, image_bytes, opened, pdf_bytes

from deepseek_ocr_loaders.labels import page_label
from deepseek_ocr_loaders.properties import iso_date

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("0 << /S /r >> 2 << /S /D >>", ["i", "ii", "1", "2"]),
        ("0 << /S /R /St 4 >>", ["IV", "V", "VI", "VII"]),
        ("0 << /S /D /P (A-) /St 5 >>", ["A-5", "A-6", "A-7", "A-8"]),
        ("0 << /P (Cover) >> 1 << /S /D >>", ["Cover", "1", "2", "3"]),
        ("0 << /S /A >> 1 << /S /a /St 26 >>", ["A", "z", "aa", "bb"]),
        ("0 << >>", ["1", "2", "3", "4"]),
        ("0 << /P ( ) >>", ["1", "2", "3", "4"]),
        ("0 << /P () /S /D /St 0 >>", ["1", "2", "3", "4"]),
        ("2 << /S /r >>", ["1", "2", "i", "ii"]),
        ("0 << /S /D /St 7 >> 9 << /S /r >>", ["7", "8", "9", "10"]),
    ],
)
def test_fault_41_labels_are_those_of_the_document(labels: str, expected: list[str]) -> None:
    data = pdf_bytes([(A4, WORD)] * 4, catalog=f"/PageLabels << /Nums [{labels}] >>")
    with opened(data) as document:
        assert [document.label(i) for i in range(4)] == expected


def test_fault_41_without_labels_the_number() -> None:
    with opened(pdf_bytes([(A4, WORD)] * 3)) as document:
        assert [document.label(i) for i in range(3)] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "labels", ["/PageLabels 5", "/PageLabels << /Nums [0] >>", "/PageLabels << /Nums [(x) 3] >>",
               "/PageLabels 99 0 R", "/PageLabels << /Kids [1 0 R] >>"]
)  # fmt: skip
def test_fault_41_broken_labels_cost_nothing(labels: str) -> None:
    with opened(pdf_bytes(catalog=labels)) as document:
        assert document.label(0) == "1"
        assert document.picture(0).has_ink


@pytest.mark.parametrize(
    ("number", "style", "expected"),
    [(1999, "r", "mcmxcix"), (3888, "R", "MMMDCCCLXXXVIII"), (27, "A", "AA"), (53, "a", "aaa"),
     (10**9, "r", "1000000000"), (10**9, "a", "1000000000")],
)  # fmt: skip
def test_labels_in_roman_and_letters(number: int, style: str, expected: str) -> None:
    assert page_label([{"startpage": 0, "style": style, "firstpagenum": number}], 0) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("D:20240131120000+01'00'", "2024-01-31T12:00:00+01:00"),
        ("D:20240131120000+01'00", "2024-01-31T12:00:00+01:00"),
        ("D:20240131120000-0530", "2024-01-31T12:00:00-05:30"),
        ("D:20240131120000Z", "2024-01-31T12:00:00+00:00"),
        ("D:20240131120000Z00'00'", "2024-01-31T12:00:00+00:00"),
        ("D:20240131120000", "2024-01-31T12:00:00"),
        ("20240131120000", "2024-01-31T12:00:00"),
        ("D:202401311200", "2024-01-31T12:00:00"),
        ("D:20240131", "2024-01-31"),
        ("D:202401", "2024-01-01"),
        ("D:2024", "2024-01-01"),
        ("2024-01-31T12:00:00Z", "2024-01-31T12:00:00+00:00"),
        ("2024-01-31 12:00:00", "2024-01-31T12:00:00"),
        ("D:20241332250000", "D:20241332250000"),
        ("D:20240131120000+99'99'", "D:20240131120000+99'99'"),
        ("D:00000101000000", "D:00000101000000"),
        ("Thu Jan 31 2024", "Thu Jan 31 2024"),
        ("D:", "D:"),
        ("", ""),
        (None, ""),
        ("D:20240131\x00120000", "2024-01-31T12:00:00"),
    ],
)
def test_dates_are_iso_as_far_as_they_can_be_read(given: str | None, expected: str) -> None:
    assert iso_date(given) == expected


def test_properties_of_a_pdf() -> None:
    data = pdf_bytes(
        extra=[("<< /Title (A\\000 title) /CreationDate (D:20240131120000Z) /Producer (P) "
               "/Keywords (a, b) /Author <FEFFD83D> /ModDate (yesterday) >>")]
    ).replace(b"/Root 1 0 R", b"/Root 1 0 R /Info 5 0 R")  # fmt: skip
    with opened(data) as document:
        properties = document.info.properties
    assert properties["creationdate"] == "2024-01-31T12:00:00+00:00"
    assert properties["producer"] == "P"
    assert properties["creator"] == ""
    assert properties["keywords"] == "a, b"
    assert properties["moddate"] == "yesterday"
    assert properties["title"].startswith("A")
    assert "subject" not in properties
    assert set(properties["title"]).isdisjoint(map(chr, range(32)))
    json.dumps(properties).encode()
    "".join(properties.values()).encode()


def test_properties_of_a_picture_and_of_a_bare_pdf() -> None:
    for data in (image_bytes(Image.new("L", (90, 90)), "PNG"), pdf_bytes()):
        with opened(data) as document:
            assert document.info.properties == {"creationdate": "", "creator": "", "producer": ""}


def test_hash_is_that_of_the_bytes_however_they_come(tmp_path: Path) -> None:
    data = pdf_bytes()
    path = tmp_path / "a.pdf"
    path.write_bytes(data)
    expected = hashlib.sha256(data).hexdigest()
    for source in (path, str(path), data, bytearray(data), memoryview(data), path.open("rb")):
        with opened(source) as document:
            assert document.info.content_hash == expected
            assert document.info.total_pages == 1
        if hasattr(source, "close"):
            assert not source.closed
            source.close()


def test_source_and_file_name(tmp_path: Path) -> None:
    path = tmp_path / "sub folder" / "ä b?.pdf"
    path.parent.mkdir()
    path.write_bytes(pdf_bytes())
    with opened(path) as document:
        assert (document.info.source, document.info.file_name) == (str(path), "ä b?.pdf")
    with opened(pdf_bytes(), name="inbox/7.pdf") as document:
        assert (document.info.source, document.info.file_name) == ("inbox/7.pdf", "7.pdf")
