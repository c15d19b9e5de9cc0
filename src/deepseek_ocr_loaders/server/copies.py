"""The servers of one set of options: one, or on a large GPU a few side by side.

Each is a managed server like any other, with a supervisor of its own: one that dies is restarted
while the others go on, and a program can do with fewer of them, but not without the first.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.errors import ServerError
from deepseek_ocr_loaders.server.attach import await_end
from deepseek_ocr_loaders.server.holds import hold_on
from deepseek_ocr_loaders.server.lease import LINGER

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from deepseek_ocr_loaders.engines.base import ServerOptions
    from deepseek_ocr_loaders.server.holds import Hold
    from deepseek_ocr_loaders.server.state import ServerFolder, ServerState

__all__ = ["Copies"]

logger = logging.getLogger(__name__)


class Copies:
    """One user's hold on them; used once.

    Args:
        first: The folder of the first.
        options: What to start; None only attaches to what runs.
    """

    def __init__(self, first: ServerFolder, options: ServerOptions | None) -> None:
        self.first = first
        self._options = options
        self._lock = threading.Lock()
        self._held: dict[int, Hold] = {}

    def options(self, number: int) -> ServerOptions | None:
        """Give what one of them is started with; None where it must not be started from here."""
        if self._options is None:
            return None
        return replace(self._options, copies=self._count(), copy=number)

    def _count(self) -> int:
        # Whoever started the first decided how much of the GPU it takes.
        running = self.first.options() if self.first.has_owner() else None
        decided = running or self._options
        return decided.copies if decided is not None else 1

    def acquire(
        self,
        *,
        timeout: float,
        linger: float = LINGER,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[ServerState]:
        """Start or attach to all of them at once, and give those that became ready.

        Args:
            timeout: Seconds to wait for them.
            linger: Seconds that they stay after the last user.
            cancelled: Asked while waiting; True gives up.

        Raises:
            ServerError: The first cannot be had; nothing is held then.
        """
        numbers = [number for number in range(self._count()) if not self._failed_before(number)]
        holds = {number: hold_on(self.first.copy(number)) for number in numbers}
        gone = threading.Event()

        def get(number: int) -> ServerState:
            state = holds[number].acquire(
                self.options(number),
                timeout=timeout,
                linger=linger,
                cancelled=lambda: gone.is_set() or cancelled(),
                beside=tuple(holds.values()),
            )
            with self._lock:
                self._held[number] = holds[number]
            return state

        if len(numbers) == 1:
            return [get(0)]
        with ThreadPoolExecutor(len(numbers) - 1, "deepseek-ocr-copies") as pool:
            others = {number: pool.submit(get, number) for number in numbers[1:]}
            try:
                return [get(0), *self._ready(others)]
            except BaseException:
                gone.set()
                for other in others.values():
                    with suppress(Exception):
                        other.result()
                self.release(at_once=True)
                raise

    def _failed_before(self, number: int) -> bool:
        """Say whether it failed beside the first as it runs now: the cause would be the same."""
        folder = self.first.copy(number)
        if not number or folder.has_owner() or not self.first.has_owner():
            return False
        first, state = self.first.read(), folder.read()
        if first is None or state is None or state.phase != "failed":
            return False
        if state.since < first.since - 60:
            return False
        logger.info("going on without the server that failed beside the first: %s", folder.log)
        return True

    def _ready(self, others: dict[int, Future[ServerState]]) -> list[ServerState]:
        states = []
        for number, other in others.items():
            try:
                states.append(other.result())
            except ServerError as error:
                logger.warning(
                    "%d of %d servers side by side did not start, pages go to the others: %s",
                    number + 1,
                    len(others) + 1,
                    error,
                )
        return states

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
        lives = [(hold.folder, hold.run) for hold in holds]
        for hold in holds:
            hold.release(at_once=at_once)
        for folder, run in lives:
            if wait and run is not None:
                await_end(folder, run)
