"""Fault 13: encrypted PDFs; three outcomes that can be told apart, and no password anywhere."""

from __future__ import annotations

import logging
import pickle
import traceback

import pytest
from support.documents import drawn, encrypted, ink_corner, opened, pdf_bytes

from deepseek_ocr_loaders.errors import PasswordRequiredError, WrongPasswordError

SECRET = "s3cr-et-Passw0rd"
REVISIONS = [2, 3, 4, 5, 6]


@pytest.mark.parametrize("revision", REVISIONS)
def test_fault_13_user_password_opens(revision: int) -> None:
    data = encrypted(pdf_bytes(), user=SECRET, owner="owner", revision=revision)
    assert ink_corner(drawn(data, password=SECRET)) == "top left"
    assert ink_corner(drawn(data, password="owner")) == "top left"


@pytest.mark.parametrize("revision", REVISIONS)
def test_fault_13_missing_password_is_told_from_a_wrong_one(revision: int) -> None:
    data = encrypted(pdf_bytes(), user=SECRET, owner="owner", revision=revision)
    with pytest.raises(PasswordRequiredError, match=r"report\.pdf.*password="):
        opened(data, name="report.pdf")
    with pytest.raises(WrongPasswordError, match=r"report\.pdf"):
        opened(data, name="report.pdf", password="wrong")


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("password", [None, "", "whatever"])
def test_fault_13_owner_password_alone_locks_nobody_out(
    revision: int, password: str | None
) -> None:
    data = encrypted(pdf_bytes(), user="", owner="owner", revision=revision)
    assert ink_corner(drawn(data, password=password)) == "top left"


def test_fault_13_empty_password_counts_as_none() -> None:
    data = encrypted(pdf_bytes(), user=SECRET, owner="owner")
    with pytest.raises(PasswordRequiredError):
        opened(data, password="")


def test_fault_13_password_of_a_file_without_one_is_ignored() -> None:
    assert ink_corner(drawn(pdf_bytes(), password="unneeded")) == "top left"


@pytest.mark.parametrize("revision", [3, 6])
def test_fault_13_password_beyond_ascii(revision: int) -> None:
    data = encrypted(pdf_bytes(), user="pässwörd", owner="owner", revision=revision)
    assert ink_corner(drawn(data, password="pässwörd")) == "top left"


def test_fault_13_password_is_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    data = encrypted(pdf_bytes(), user=SECRET, owner="owner")
    with opened(data, password=SECRET) as document:
        seen = repr(document) + repr(document.info) + repr(document.picture(0))
        seen += repr(vars(document)) + repr(vars(document._file))
    with pytest.raises(WrongPasswordError) as caught:
        opened(data, password=SECRET + "x")
    seen += "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    seen += repr(pickle.dumps(caught.value)) + caplog.text
    assert SECRET not in seen
