"""Kernel locks on files: they end with the process that holds them, however it ends.

POSIX record locks and not `flock`, because a forked child must not share its parent's lock: with
`flock` a worker that outlives its killed parent would keep the parent's lease for ever. The price
is that closing *any* descriptor of a file drops the process's lock on it, so a file that this
process has locked is never opened a second time here.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.server.files import open_private

try:
    import fcntl
except ImportError:  # Windows: the package must import there, managed servers are refused earlier
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["LockTimeoutError", "exclusive", "is_locked", "try_lock"]

_mutexes: dict[str, threading.RLock] = {}
_mutexes_guard = threading.Lock()


class LockTimeoutError(TimeoutError):
    """Somebody else held the lock all the time."""


def try_lock(path: Path, *, create: bool = True) -> int | None:
    """Lock a file and give its descriptor; None where it is locked already, or not there."""
    try:
        descriptor = open_private(path, os.O_RDWR | (os.O_CREAT if create else 0))
    except FileNotFoundError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Say whether another process holds the lock of this file; this one must not hold it."""
    try:
        descriptor = open_private(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        # A shared lock, so that those who ask do not get into each other's way.
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def exclusive(
    path: Path, *, timeout: float, cancelled: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold a file's lock against all other processes and threads.

    Args:
        path: The file, made if need be.
        timeout: Seconds to wait for it.
        cancelled: Asked while waiting; True gives up.

    Raises:
        LockTimeoutError: It was not to be had, or the waiting was cancelled.
    """
    deadline = time.monotonic() + timeout
    with _mutexes_guard:
        mutex = _mutexes.setdefault(str(path), threading.RLock())
    while not mutex.acquire(timeout=0.05):
        if time.monotonic() > deadline or cancelled():
            raise LockTimeoutError(str(path))
    try:
        while (descriptor := try_lock(path)) is None:
            if time.monotonic() > deadline or cancelled():
                raise LockTimeoutError(str(path))
            time.sleep(0.02)
        try:
            yield
        finally:
            os.close(descriptor)
    finally:
        mutex.release()


def _forget_after_fork() -> None:
    # The thread that held a mutex does not exist in the child.
    global _mutexes_guard  # noqa: PLW0603
    _mutexes_guard = threading.Lock()
    _mutexes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
