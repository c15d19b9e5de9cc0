"""What can go wrong, as types: every error that leaves this package is one of these.

Each message says what happened, to which file and page, and what to do about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AllPagesFailedError",
    "AnswerError",
    "AuthenticationError",
    "BlockedAddressError",
    "ConfigurationError",
    "CorruptSourceError",
    "DeepSeekOCRError",
    "DownloadError",
    "EmptySourceError",
    "MissingExtraError",
    "ModelNotFoundError",
    "NoEngineError",
    "PageError",
    "PasswordRequiredError",
    "PortTakenError",
    "QuarantinedPageError",
    "RenderError",
    "RequestError",
    "RequestRejectedError",
    "RequestTimeoutError",
    "ServerDiedError",
    "ServerError",
    "ServerStartError",
    "ServerUnreachableError",
    "SourceError",
    "SourceNotFoundError",
    "SourceTooLargeError",
    "UnsupportedSourceError",
    "WrongPasswordError",
]


class DeepSeekOCRError(Exception):
    """The base of all errors of this package; `except DeepSeekOCRError` catches every one.

    Args:
        message: What happened and what to do, for the person who runs the program.
        **details: Facts for programs; each becomes an attribute and survives pickling.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        for name, value in details.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers hand errors back through pickle, which would drop keyword arguments.
        return (_rebuild, (type(self), dict(self.__dict__)))


def _rebuild(kind: type[DeepSeekOCRError], state: dict[str, Any]) -> DeepSeekOCRError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["message"])
    error.__dict__.update(state)
    return error


class ConfigurationError(DeepSeekOCRError, ValueError):
    """A parameter, or a combination of parameters, that cannot be used."""


class MissingExtraError(DeepSeekOCRError, ImportError):
    """A part of this package needs an extra that is not installed.

    Args:
        extra: The name of the extra, as in `pip install "deepseek-ocr-loaders[extra]"`.
        purpose: What it is needed for.
    """

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(
            f'{purpose} needs the extra "{extra}": pip install "deepseek-ocr-loaders[{extra}]"',
            extra=extra,
            purpose=purpose,
        )


# --- the file -----------------------------------------------------------------------------


class SourceError(DeepSeekOCRError):
    """A file, address or stream that cannot be read.

    Attributes:
        source: Where it came from, without secrets.
    """

    source: str

    def __init__(self, message: str, *, source: str, **details: Any) -> None:
        super().__init__(message, source=source, **details)


class SourceNotFoundError(SourceError, FileNotFoundError):
    """There is nothing at that path."""


class EmptySourceError(SourceError):
    """The file has no bytes, or the document has no pages."""


class UnsupportedSourceError(SourceError):
    """The content is of a kind that is not read here.

    Attributes:
        kind: What the content was recognised as, for example `html` or `docx`.
    """

    kind: str


class CorruptSourceError(SourceError):
    """The content says that it is a PDF or a picture, but cannot be opened as one."""


class PasswordRequiredError(SourceError):
    """The PDF opens only with a password and none was given."""


class WrongPasswordError(SourceError):
    """The PDF does not open with the password that was given."""


class SourceTooLargeError(SourceError):
    """The content is over a limit of size or of pixels."""


class DownloadError(SourceError):
    """An http(s) address that did not give its content."""


class BlockedAddressError(DownloadError):
    """An address that leads into a private network, which was not allowed."""


# --- the page -----------------------------------------------------------------------------


class PageError(DeepSeekOCRError):
    """One page that could not be read; the others are not touched by it.

    Attributes:
        source: The document, without secrets.
        page_number: The page, counted from 1; 0 where it is not known.
    """

    source: str
    page_number: int

    def __init__(
        self, message: str, *, source: str = "", page_number: int = 0, **details: Any
    ) -> None:
        super().__init__(message, source=source, page_number=page_number, **details)


class RenderError(PageError):
    """The page cannot be drawn."""


class RequestError(PageError):
    """The server did not give an answer for the page.

    Attributes:
        attempts: How many times the page was sent.
        status_code: The HTTP status of the last reply; None where there was no reply.
        server_message: What the server said about it, at most 500 characters.
    """

    attempts: int
    status_code: int | None
    server_message: str

    def __init__(
        self,
        message: str,
        *,
        source: str = "",
        page_number: int = 0,
        attempts: int = 1,
        status_code: int | None = None,
        server_message: str = "",
        **details: Any,
    ) -> None:
        super().__init__(
            message,
            source=source,
            page_number=page_number,
            attempts=attempts,
            status_code=status_code,
            server_message=server_message,
            **details,
        )


class RequestTimeoutError(RequestError):
    """The page was sent and no answer came within the time limit."""


class RequestRejectedError(RequestError):
    """The server refused the request (400, 413, 422) and would refuse it again."""


class AuthenticationError(RequestError):
    """The server wants another key (401, 403); it concerns every page, so it ends the run."""


class ModelNotFoundError(RequestError):
    """The server does not serve that model; it concerns every page, so it ends the run."""


class AnswerError(RequestError):
    """The server replied with something that is not an answer (broken JSON, no choices)."""


class QuarantinedPageError(RequestError):
    """The server died with this page twice, so the page is not sent again."""


class AllPagesFailedError(DeepSeekOCRError):
    """Not one page of the run could be read; raised whatever `on_error` says.

    Attributes:
        errors: The errors of the pages, in page order.
    """

    errors: Sequence[DeepSeekOCRError]

    def __init__(self, message: str, *, errors: Sequence[DeepSeekOCRError] = ()) -> None:
        super().__init__(message, errors=tuple(errors))


# --- the server ---------------------------------------------------------------------------


class ServerError(DeepSeekOCRError):
    """The OCR server cannot be had; it concerns every page, so it ends the run."""


class NoEngineError(ServerError):
    """There is nothing on this machine that could read a page, and no address was given."""


class ServerUnreachableError(ServerError):
    """Nothing usable answers at the address.

    Attributes:
        base_url: The address, without secrets.
    """

    base_url: str


class PortTakenError(ServerError):
    """Another program answers at the port that was asked for."""


class ServerStartError(ServerError):
    """The server did not become ready.

    Attributes:
        hint: The plain cause and what to do, where the log shows one; else an empty string.
        exit_code: The exit code of the process; None where it was still alive.
        log_tail: The end of the server's log.
    """

    hint: str
    exit_code: int | None
    log_tail: str

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        exit_code: int | None = None,
        log_tail: str = "",
        **details: Any,
    ) -> None:
        super().__init__(message, hint=hint, exit_code=exit_code, log_tail=log_tail, **details)


class ServerDiedError(ServerStartError):
    """The server was up, died, and did not come back within its restarts."""
