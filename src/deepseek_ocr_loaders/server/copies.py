"""The servers of one set of options: one, or on a large GPU a few side by side.

Each is a managed server like any other, with a supervisor of its own: one that dies is restarted
while the others go on, and a program can do with fewer of them, but not without the first.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.engines.select import engine_named
from deepseek_ocr_loaders.server.attach import await_end
from deepseek_ocr_loaders.server.holds import GPU_ENGINES, give_back_idle, hold_on
from deepseek_ocr_loaders.server.lease import LINGER

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepseek_ocr_loaders.engines.base import ServerOptions
    from deepseek_ocr_loaders.server.holds import Hold
    from deepseek_ocr_loaders.server.state import ServerFolder, ServerState

__all__ = ["Copies"]

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that a program waits for the others once the first is ready; they start together."""


class _Joining:
    """One of the others, on its way to be ready, in a thread of its own.

    A daemon, unlike those of an executor: a program that ends does not wait for it.
    """

    def __init__(self, acquire: Callable[[Callable[[], bool]], ServerState]) -> None:
        self.state: ServerState | None = None
        self.error: BaseException | None = None
        self.given_up = threading.Event()
        self._acquire = acquire
        self._thread = threading.Thread(target=self._run, name="deepseek-ocr-copy", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.state = self._acquire(self.given_up.is_set)
        except BaseException as error:  # noqa: BLE001 - told where it is waited for
            self.error = error

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False where it goes on."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()


class Copies:
    """One user's hold on them; acquired and released once.

    Args:
        first: The folder of the first.
        options: What to start; None only attaches to what runs.
    """

    def __init__(self, first: ServerFolder, options: ServerOptions | None) -> None:
        self.first = first
        self._options = options
        self._count = 1
        self._lock = threading.Lock()
        self._closed = False
        self._held: dict[int, Hold] = {}

    def options(self, number: int) -> ServerOptions | None:
        """Give what one of them is started with; None where it must not be started from here."""
        if self._options is None:
            return None
        return replace(self._options, copies=self._count, copy=number)

    @property
    def folders(self) -> list[ServerFolder]:
        """Their folders, the first's first."""
        return [self.first.copy(number) for number in range(self._count)]

    def acquire(
        self,
        *,
        timeout: float,
        linger: float = LINGER,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[ServerState]:
        """Start or attach to all of them at once, and give those that became ready.

        Args:
            timeout: Seconds to wait for the first.
            linger: Seconds that they stay after the last user.
            cancelled: Asked while waiting; True gives up.

        Raises:
            ServerError: The first cannot be had; nothing is held then.
        """
        self._count = self._decide()
        numbers = [number for number in range(self._count) if self._is_worth_a_try(number)]
        holds = {number: hold_on(self.first.copy(number)) for number in numbers}
        if self._options is not None and self._options.engine in GPU_ENGINES:
            give_back_idle(set(holds.values()))

        def get(number: int, given_up: Callable[[], bool]) -> ServerState:
            state = holds[number].acquire(
                self.options(number), timeout=timeout, linger=linger, cancelled=given_up
            )
            with self._lock:
                if not self._closed:
                    self._held[number] = holds[number]
                    return state
            holds[number].release(at_once=True)  # nobody waits for it any more
            return state

        def join(number: int) -> _Joining:
            return _Joining(lambda given_up: get(number, lambda: given_up() or cancelled()))

        others = {number: join(number) for number in numbers[1:]}
        try:
            return [get(0, cancelled), *self._ready(others, cancelled)]
        except BaseException:
            self._give_up(others)
            raise

    def _decide(self) -> int:
        # Whoever started the first decided how much of the GPU it takes.
        if self.first.has_owner() and (state := self.first.read()) and state.alive:
            running = self.first.options()
            return running.copies if running is not None else 1
        if self._options is None:
            return 1
        return engine_named(self._options.engine).copies(self._options)

    def _is_worth_a_try(self, number: int) -> bool:
        """Say whether to wait for it: not while it comes back, nor if it cannot start."""
        if not number or not self.first.has_owner():
            return True
        folder = self.first.copy(number)
        first, state = self.first.read(), folder.read()
        if first is None or state is None:
            return True
        if folder.has_owner():
            why = "is being restarted" if state.phase == "restarting" else ""
        else:
            # Beside the first as it runs now (they start together) the cause would be the same.
            refused = state.phase == "failed" and state.failure.get("kind") == "start"
            why = "did not start" if refused and state.since > first.since - PATIENCE else ""
        if why:
            logger.info("going on without server %d, which %s: %s", number + 1, why, folder.log)
        return not why

    def _ready(
        self, others: dict[int, _Joining], cancelled: Callable[[], bool]
    ) -> list[ServerState]:
        states = []
        deadline = time.monotonic() + PATIENCE
        for number, other in others.items():
            if not other.wait(deadline - time.monotonic()):
                other.given_up.set()
                other.wait(10)
            if other.state is not None and number in self._held:
                states.append(other.state)
                continue
            if other.error is not None and (cancelled() or not isinstance(other.error, Exception)):
                raise other.error
            late = f"it was not ready {PATIENCE:.0f} s after the first"
            logger.warning(
                "server %d of %d side by side is not there, pages go to the others: %s",
                number + 1,
                self._count,
                late if other.given_up.is_set() else other.error,
            )
        return states

    def _give_up(self, others: dict[int, _Joining]) -> None:
        for other in others.values():
            other.given_up.set()
        try:
            deadline = time.monotonic() + 10
            for other in others.values():
                other.wait(deadline - time.monotonic())
        finally:
            self.release(at_once=True)

    def hold(self, number: int) -> Hold | None:
        """Give the hold on one of them."""
        return self._held.get(number)

    def release(self, *, at_once: bool = False, wait: bool = False) -> None:
        """Count one user less of each.

        Args:
            at_once: Give the leases back now if nobody else in this process uses the servers.
            wait: Return when they have ended, if this was their last user.
        """
        with self._lock:
            holds, self._held = list(self._held.values()), {}
            self._closed = True
        lives = [(hold.folder, hold.run) for hold in holds]
        for hold in holds:
            hold.release(at_once=at_once)
        for folder, run in lives:
            if wait and run is not None:
                await_end(folder, run)
