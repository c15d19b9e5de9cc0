"""Who uses a server: one locked file for each process, which the kernel unlocks when it ends."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.server.files import read_json
from deepseek_ocr_loaders.server.locks import try_lock

if TYPE_CHECKING:
    from pathlib import Path

    from deepseek_ocr_loaders.server.state import ServerFolder

__all__ = ["LINGER", "Lease", "Leases", "scan"]

LINGER = 3.0
"""Seconds that a server waits for a next user after the last one has gone."""

_held: dict[str, Lease] = {}
"""The files that this process has locked: they must not be opened a second time."""


class Lease:
    """This process's right to a server, from `take` to `drop` or to the end of the process.

    Args:
        path: The file.
        descriptor: Its locked descriptor.
        linger: Seconds that the server stays after this lease, if it was the last.
    """

    def __init__(self, path: Path, descriptor: int, linger: float) -> None:
        self.path = path
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._write(linger)

    @classmethod
    def take(cls, folder: ServerFolder, *, linger: float = LINGER) -> Lease:
        """Take a lease; the caller holds the folder's gate."""
        descriptor = None
        while descriptor is None:
            # Someone who looks at the leases may have touched the new file first: take another.
            path = folder.leases / f"{os.getpid()}-{secrets.token_hex(4)}"
            descriptor = try_lock(path)
        lease = cls(path, descriptor, linger)
        _held[str(path)] = lease
        return lease

    @property
    def held(self) -> bool:
        """True in the process that took it, until it is dropped."""
        return self._descriptor >= 0 and self._pid == os.getpid()

    def drop(self, *, linger: float | None = None) -> None:
        """Give it back; a forked child's call does nothing to its parent's lease.

        Args:
            linger: Seconds that the server may wait for a next user; None leaves what was said.
        """
        if not self.held:
            return
        if linger is not None:
            self._write(linger)
        # The file stays for the supervisor, which reads the last word on lingering and removes it.
        os.close(self._descriptor)
        self._descriptor = -1
        _held.pop(str(self.path), None)

    def _write(self, linger: float) -> None:
        record = json.dumps({"pid": os.getpid(), "linger": linger}).encode()
        os.pwrite(self._descriptor, record.ljust(80), 0)

    def _forget(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1


@dataclass(frozen=True, slots=True)
class Leases:
    """What a look at the leases of a server shows.

    Attributes:
        pids: The processes that hold one.
        gone: The lingering that those asked for whose lease has ended, in seconds.
    """

    pids: tuple[int, ...]
    gone: tuple[float, ...]


def scan(folder: ServerFolder, *, tidy: bool) -> Leases:
    """Look at the leases.

    Args:
        folder: The server.
        tidy: Remove those that have ended; the caller holds the gate or owns the server.
    """
    pids: list[int] = []
    gone: list[float] = []
    for path in folder.leases.iterdir():
        pid = int(path.name.partition("-")[0]) if path.name.partition("-")[0].isdigit() else 0
        if str(path) in _held:
            pids.append(pid)
            continue
        record = read_json(path) or {}
        try:
            descriptor = try_lock(path, create=False)
        except OSError:
            continue
        if descriptor is None:
            if path.exists():
                pids.append(pid)
            continue
        if tidy:
            with suppress(OSError):
                path.unlink()
        os.close(descriptor)
        linger = record.get("linger", LINGER)
        gone.append(float(linger) if isinstance(linger, int | float) else LINGER)
    return Leases(tuple(pids), tuple(gone))


def _forget_after_fork() -> None:
    # Closing the inherited descriptor leaves the parent's lock alone; the child has none.
    for lease in list(_held.values()):
        lease._forget()  # noqa: SLF001
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
