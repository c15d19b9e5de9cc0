"""What cannot be read is an error that says what and why, never a Document or an empty list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pymupdf
import pytest
from contract.stage import FIRST, in_thread, written_pdf
from support.fault_server import answer, status

from deepseek_ocr_loaders.errors import (
    AllPagesFailedError,
    ConfigurationError,
    CorruptSourceError,
    DeepSeekOCRError,
    EmptySourceError,
    PasswordRequiredError,
    RequestError,
    ServerError,
    SourceNotFoundError,
    UnsupportedSourceError,
    WrongPasswordError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from contract.stage import Stage


def _error(stage: Stage, path: Path, **options: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        stage.load(path, **options)
    return caught.value


def test_a_missing_file_is_named(stage: Stage) -> None:
    error = _error(stage, stage.folder / "gone.pdf")
    assert "gone.pdf" in str(error)
    assert isinstance(error, (OSError, ValueError))
    if stage.subject.options and not isinstance(error, FileNotFoundError):
        pytest.fail(f"{error!r} is no FileNotFoundError")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", EmptySourceError),
        (b"%PDF-1.7\nnothing of use", CorruptSourceError),
        (b"<!doctype html><html><title>Sign in</title></html>", UnsupportedSourceError),
    ],
    ids=["empty", "broken", "html"],
)
def test_a_file_that_is_no_document_is_an_error_that_names_it(
    stage: Stage, content: bytes, expected: type[Exception]
) -> None:
    path = stage.folder / "odd.pdf"
    path.write_bytes(content)
    error = _error(stage, path)
    assert "odd.pdf" in str(error)
    if stage.subject.options:
        assert isinstance(error, expected)


@pytest.mark.parametrize("password", [None, "wrong"])
def test_an_encrypted_file_says_that_it_wants_a_password(
    stage: Stage, password: str | None
) -> None:
    if password and not stage.subject.options:
        pytest.skip("only options")
    path = stage.folder / "locked.pdf"
    path.write_bytes(
        written_pdf(range(3), encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="u", owner_pw="o")
    )
    error = _error(stage, path, **({"password": password} if password else {}))
    assert "password" in str(error).lower() or "encrypt" in str(error).lower()
    if stage.subject.options:
        assert type(error) is (WrongPasswordError if password else PasswordRequiredError)
        assert len(stage.load(path, password="u")) == 3


def test_bad_options_are_told_when_it_is_made(stage: Stage) -> None:
    stage.only("options")
    for options in ({"on_eror": "skip"}, {"pages": "0"}, {"timeout": -1}, {"mode": "book"}):
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            stage.make(**options)
    assert stage.server.requests == []


def test_an_error_of_the_file_is_of_this_package(stage: Stage) -> None:
    stage.only("options")
    error = _error(stage, stage.folder / "gone.pdf")
    assert isinstance(error, SourceNotFoundError)
    assert isinstance(error, DeepSeekOCRError)


def test_a_dead_server_raises_and_is_no_empty_result(stage: Stage) -> None:
    stage.only("options")
    stage.server.kill()
    for policy in ("raise", "skip", "record"):
        with pytest.raises(ServerError):
            stage.load(on_error=policy, retries=0)


def _fail(*pages: int) -> Any:
    return lambda request: status(400, "no such luck") if request.marker in pages else answer()


@pytest.mark.parametrize("way", ["load", "lazy", "aload", "alazy"])
async def test_fault_42_raise_names_page_and_file_in_every_way(stage: Stage, way: str) -> None:
    stage.only("options")
    stage.server.script = _fail(FIRST + 2)
    made = stage.make()
    with pytest.raises(RequestError, match="no such luck") as caught:  # noqa: PT012 - four ways
        if way == "load":
            stage.subject.load(made, stage.pdf)
        elif way == "lazy":
            list(stage.lazy(made))
        elif way == "aload":
            loading = stage.subject.aload(made, stage.pdf)
            if loading is None:
                pytest.skip("has no asynchronous way")
            await loading
        else:
            documents = stage.subject.alazy(made, stage.pdf)
            assert documents is not None
            [document async for document in documents]
    assert caught.value.page_number == 3
    assert "paper.pdf" in str(caught.value)


def test_fault_42_what_came_before_a_failure_is_handed_out(stage: Stage) -> None:
    stage.only("options")
    stage.server.script = _fail(FIRST + 2)
    documents = stage.lazy()
    assert stage.numbers([next(documents), next(documents)]) == [FIRST, FIRST + 1]
    with pytest.raises(RequestError):
        next(documents)
    assert list(documents) == []


def test_fault_42_skip_leaves_out_the_page_and_nothing_else(stage: Stage) -> None:
    stage.only("options")
    stage.server.script = _fail(FIRST, FIRST + 3)
    got = stage.load(pages="1-5", on_error="skip")
    assert [seen.metadata["page_number"] for seen in got] == [2, 3, 5]


def test_fault_42_record_keeps_count_and_order(stage: Stage) -> None:
    stage.only("options")
    stage.server.script = _fail(FIRST, FIRST + 3)
    got = stage.load(pages="1-5", on_error="record")
    assert [seen.metadata["page_number"] for seen in got] == [1, 2, 3, 4, 5]
    statuses = [seen.metadata["ocr_status"] for seen in got]
    assert statuses == ["failed", "ok", "ok", "failed", "ok"]
    assert "no such luck" not in got[0].text
    assert "no such luck" in got[0].metadata["ocr_error"]
    assert len({seen.id for seen in got}) == 5


@pytest.mark.parametrize("policy", ["raise", "skip", "record"])
def test_fault_42_all_pages_failed_raises_whatever_the_policy(stage: Stage, policy: str) -> None:
    stage.only("options")
    stage.server.script = lambda _: status(400, "no such luck")
    expected = RequestError if policy == "raise" else AllPagesFailedError
    documents = stage.lazy(stage.make(pages="1-5", on_error=policy))
    with pytest.raises(expected, match="no such luck"):
        in_thread(lambda: next(documents))
