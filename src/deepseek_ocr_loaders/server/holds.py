"""What this process holds: one lease for each server, shared by all its threads and loaders.

A loader that is done does not end the server at once, since the next one is often a moment away.
The lease is kept for a while without a user, and given back at the end of the process at the
latest; should the process be killed, the kernel gives it back.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.server.attach import Attached, attach, await_end, await_ready
from deepseek_ocr_loaders.server.lease import LINGER

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepseek_ocr_loaders.engines.base import ServerOptions
    from deepseek_ocr_loaders.server.state import ServerFolder, ServerState

__all__ = ["GPU_ENGINES", "IDLE", "Hold", "give_back_idle", "hold_on"]

IDLE = 300.0
"""Seconds that a process keeps a server that none of its loaders uses."""

GPU_ENGINES = frozenset({"vllm", "docker"})


class Hold:
    """This process's use of one server.

    Args:
        folder: The server.
    """

    def __init__(self, folder: ServerFolder) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._attached: Attached | None = None
        self._users = 0
        self._timer: threading.Timer | None = None

    def acquire(
        self,
        options: ServerOptions | None,
        *,
        timeout: float,
        linger: float = LINGER,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> ServerState:
        """Count one more user, and give the server when it is ready.

        Args:
            options: What to start if it does not run; None only attaches.
            timeout: Seconds to wait for it.
            linger: Seconds that the server stays after the last user.
            cancelled: Asked while waiting; True gives up.

        Raises:
            ServerError: It cannot be had; nothing is held then.
        """
        with self._lock:
            self._users += 1
            self._stop_timer()
        try:
            while True:
                run, fresh = self._attach(options, linger, cancelled)
                try:
                    return await_ready(self.folder, run, timeout=timeout, cancelled=cancelled)
                except Exception:
                    # A lease from before on a server that has died since is no reason to fail.
                    if fresh or options is None or cancelled():
                        raise
                    self._forget(run)
        except BaseException:
            self.release(at_once=True)
            raise

    def _attach(
        self, options: ServerOptions | None, linger: float, cancelled: Callable[[], bool]
    ) -> tuple[str, bool]:
        with self._lock:
            if self._attached is not None and self._attached.lease.held:
                return self._attached.run, False
            self._attached = attach(self.folder, options, linger=linger, cancelled=cancelled)
            return self._attached.run, True

    def _forget(self, run: str) -> None:
        with self._lock:
            if self._attached is not None and self._attached.run == run:
                self._attached.lease.drop(linger=0)
                self._attached = None

    def renew(
        self,
        run: str,
        options: ServerOptions,
        *,
        timeout: float,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> ServerState:
        """Start the server anew after the life that is named ended without a word."""
        self._forget(run)
        new, _ = self._attach(options, LINGER, cancelled)
        return await_ready(self.folder, new, timeout=timeout, cancelled=cancelled)

    @property
    def run(self) -> str | None:
        """The life of the server that this process holds."""
        attached = self._attached
        return attached.run if attached is not None and attached.lease.held else None

    def release(self, *, at_once: bool = False) -> None:
        """Count one user less.

        Args:
            at_once: Give the lease back now if nobody else in this process uses the server.
        """
        with self._lock:
            self._users = max(0, self._users - 1)
            if self._users or self._attached is None:
                return
            if not at_once:
                self._start_timer()
                return
            self._drop(linger=0)

    def _drop(self, *, linger: float | None) -> None:
        self._stop_timer()
        if self._attached is not None:
            self._attached.lease.drop(linger=linger)
            self._attached = None

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = threading.Timer(IDLE, self._on_idle)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_idle(self) -> None:
        with self._lock:
            if not self._users:
                self._drop(linger=None)

    def give_back_if_idle(self) -> None:
        """Give the lease back and wait for the server's end, if no loader here uses it."""
        with self._lock:
            if self._users or self._attached is None:
                return
            run = self._attached.run
            self._drop(linger=0)
        await_end(self.folder, run)

    def drop_at_exit(self) -> None:
        """Give the lease back, whoever counts on it."""
        # Without the lock: a thread that holds it may be waiting for the server.
        if (attached := self._attached) is not None:
            attached.lease.drop()


_holds: dict[str, Hold] = {}
_holds_guard = threading.Lock()


def hold_on(folder: ServerFolder) -> Hold:
    """Give this process's hold on a server."""
    with _holds_guard:
        return _holds.setdefault(str(folder.path), Hold(folder))


def give_back_idle(wanted: set[Hold]) -> None:
    """Make room: a server that this process only keeps for later may fill the GPU.

    Args:
        wanted: Those that stay.
    """
    for hold in list(_holds.values()):
        if hold not in wanted and hold.folder.engine() in GPU_ENGINES:
            hold.give_back_if_idle()


def _at_exit() -> None:
    for hold in list(_holds.values()):
        hold.drop_at_exit()


def _after_fork() -> None:
    # A child holds nothing; its parent's leases are none of its business.
    global _holds_guard  # noqa: PLW0603
    _holds_guard = threading.Lock()
    _holds.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
