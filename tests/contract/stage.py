"""The stage of a contract test: a file, a server where one is needed, and a count of pages."""

from __future__ import annotations

import gc
import importlib
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pymupdf
import pytest
from support.fault_server import FaultServer, marked_pdf, marker_text, markers_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from contract.adapters import Seen, Subject

__all__ = ["ANTI_HANG", "FIRST", "PAGES", "Stage", "in_thread", "written_pdf"]

PAGES = 20
FIRST = 100
"""The number that the first page of the file carries."""

ANTI_HANG = 30.0
"""Seconds after which something that waits is taken for dead."""


def written_pdf(numbers: Iterable[int], **saving: Any) -> bytes:
    """A PDF whose pages carry their numbers for both kinds of readers: as bars and as text."""
    numbers = list(numbers)
    document = pymupdf.open(stream=marked_pdf(numbers))
    for page, number in zip(document, numbers, strict=True):
        page.insert_text((20, page.rect.height / 2), marker_text(number))
    data: bytes = document.tobytes(**saving)
    document.close()
    return data


def in_thread(work: Callable[[], Any]) -> Any:
    """Give the result of a call that may hang: then it is an error."""
    result: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ANTI_HANG)
    if thread.is_alive():
        msg = "it hangs"
        raise AssertionError(msg)
    if errors:
        raise errors[0]
    return result[0]


@dataclass
class Stage:
    """What a test plays with."""

    subject: Subject
    folder: Path
    server: FaultServer
    monkeypatch: pytest.MonkeyPatch
    pages_read: list[float] = field(default_factory=list)
    on_page: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.pdf = self.folder / "paper.pdf"
        self.pdf.write_bytes(written_pdf(range(FIRST, FIRST + PAGES)))
        self._count_pages()

    def _count_pages(self) -> None:
        module, _, path = self.subject.page_work.partition(":")
        holder: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            holder = getattr(holder, parent)
        original = getattr(holder, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.pages_read.append(time.monotonic())
            if self.on_page is not None:
                self.on_page()
            return original(*args, **options)

        self.monkeypatch.setattr(holder, name, counted)

    def only(self, what: str) -> None:
        """Skip the test where the subject is of another framework or takes none of our options."""
        if what not in {self.subject.framework, "options" if self.subject.options else ""}:
            pytest.skip(f"only {what}")

    def make(self, path: Path | None = None, **options: Any) -> Any:
        """Make the subject, pointed at the server if it needs one."""
        if self.subject.options:
            options = {"base_url": self.server.base_url, "max_concurrency": 4, **options}
        return self.subject.make(path or self.pdf, **options)

    def load(self, path: Path | None = None, **options: Any) -> list[Seen]:
        """Make the subject and give all that it gives."""
        path = path or self.pdf
        return self.look(self.subject.load(self.make(path, **options), path))

    def lazy(self, made: Any = None, path: Path | None = None) -> Any:
        """The Documents of the file, one after the other."""
        return self.subject.lazy(made or self.make(path), path or self.pdf)

    def look(self, documents: Iterable[Any]) -> list[Seen]:
        """Look at Documents of either framework."""
        return [self.subject.seen(document) for document in documents]

    def numbers(self, documents: Iterable[Any]) -> list[int]:
        """The numbers of the pages that the texts come from."""
        return [number for seen in self.look(documents) for number in markers_in(seen.text)]

    def open_files(self) -> int:
        """How many descriptors of this process are open on the file."""
        return sum(link == str(self.pdf) for link in _links())

    def freed(self, before: int) -> bool:
        """Whether the file is closed and no more sockets are open than before; waits for it."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            gc.collect()
            if not self.open_files() and sockets() <= before and not self.server.in_flight:
                return True
            time.sleep(0.02)
        return False


def sockets() -> int:
    """How many sockets this process has open."""
    return sum(link.startswith("socket:") for link in _links())


def _links() -> list[str]:
    links = []
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are all that is wanted
        try:
            links.append(os.readlink(f"/proc/self/fd/{entry}"))  # noqa: PTH115
        except OSError:
            continue
    return links
