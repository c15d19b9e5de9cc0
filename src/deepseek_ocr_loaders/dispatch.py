"""Whose turn it is: how many pages are at a server at once, over all loads of one event loop.

A `Lane` is one server as an event loop sees it. All loads of the loop share it, so that fifty of
them at once put no more on the server than one. A `Line` is one load that waits for its turns;
lines are served in rotation, so that a small load is not stuck behind a large one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

__all__ = ["Lane", "Line", "Ticket", "Turns", "turns"]


@dataclass(eq=False, slots=True)
class Lane:
    """One server and the requests that are open there.

    Attributes:
        limits: What each load that uses it allows; the largest counts.
        open: The requests under way, in the order in which they were sent.
        alone: True while a page is there that nothing else may be with.
        holds: Positive while someone finds out whether the server lives.
        not_before: Loop time until which the server asked to be left in peace.
    """

    limits: list[int] = field(default_factory=list)
    open: dict[int, Ticket] = field(default_factory=dict)
    alone: bool = False
    holds: int = 0
    not_before: float = 0.0

    @property
    def load(self) -> float:
        """How busy it is, as the share of its limit."""
        return len(self.open) / max(self.limits, default=1)

    def takes(self, now: float) -> bool:
        """Tell whether one more request may be sent."""
        return not self.alone and not self.holds and now >= self.not_before and self.load < 1


@dataclass(eq=False, slots=True)
class Ticket:
    """The right to have one request open.

    Attributes:
        lane: Where.
        number: Counts up in the order of sending.
        since: Loop time from which the time limit of the request counts: when it was sent, or
            later, when one that the server may have taken before it was answered. Until then it
            may have waited in the server's own queue behind pages of ours, which is no fault.
    """

    lane: Lane
    number: int
    since: float

    @contextlib.asynccontextmanager
    async def within(self, seconds: float) -> AsyncGenerator[None, None]:
        """Limit the time of the request.

        Raises:
            TimeoutError: It was over.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def check() -> None:
            nonlocal timer
            left = self.since + seconds - loop.time()
            if left > 0:
                timer = loop.call_later(left, check)
            else:
                limit.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as limit:
                timer = loop.call_later(seconds, check)
                yield
        finally:
            if timer is not None:
                timer.cancel()


@dataclass(eq=False, slots=True)
class _Waiter:
    granted: asyncio.Future[Ticket]
    only: Callable[[], Lane] | None = None


@dataclass(eq=False, slots=True)
class Line:
    """One load: how much it may have open in all, and who waits.

    Attributes:
        limit: Requests that it may have open over all of its lanes.
        lanes: Gives the lanes that it can use now.
        under_way: Requests that it has open.
    """

    limit: int
    lanes: Callable[[], Iterable[Lane]]
    under_way: int = 0
    waiting: deque[_Waiter] = field(default_factory=deque)
    suspects: deque[_Waiter] = field(default_factory=deque)


class Turns:
    """The lanes and lines of one event loop."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
        self._lines: list[Line] = []
        self._count = 0

    def join(self, base_url: str, limit: int) -> Lane:
        """Give the lane of a server, and take `limit` into account for it."""
        lane = self._lanes.setdefault(base_url, Lane())
        lane.limits.append(limit)
        return lane

    def leave(self, base_url: str, limit: int) -> None:
        """Undo a `join`."""
        lane = self._lanes[base_url]
        lane.limits.remove(limit)
        if not lane.limits:
            del self._lanes[base_url]

    def change(self, base_url: str, old: int, new: int) -> None:
        """Take another limit into account than the one of a `join`."""
        limits = self._lanes[base_url].limits
        limits[limits.index(old)] = new
        self.kick()

    def add(self, line: Line) -> None:
        """Let a load take part."""
        self._lines.append(line)

    def remove(self, line: Line, error: BaseException | None = None) -> None:
        """Take a load out; whoever still waits in its line gets the error."""
        if line in self._lines:
            self._lines.remove(line)
        for waiter in (*line.waiting, *line.suspects):
            if not waiter.granted.done():
                if error is None:
                    waiter.granted.cancel()
                else:
                    waiter.granted.set_exception(error)
        line.waiting.clear()
        line.suspects.clear()
        self.kick()

    @contextlib.asynccontextmanager
    async def turn(
        self, line: Line, *, again: bool = False, only: Callable[[], Lane] | None = None
    ) -> AsyncGenerator[Ticket, None]:
        """Wait for a turn, and hold it.

        Args:
            line: Who asks.
            again: True for a page that has been sent before: it goes to the head of its line.
            only: Gives the lane on which the request must be alone.
        """
        granted: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        ticket = await self._acquire(line, _Waiter(granted, only), again)
        try:
            yield ticket
        finally:
            self._give_back(line, ticket)

    @contextlib.contextmanager
    def hold(self, lane: Lane) -> Iterator[None]:
        """Send nothing to that server for the time of the block."""
        lane.holds += 1
        try:
            yield
        finally:
            lane.holds -= 1
            self.kick()

    def pause(self, lane: Lane, seconds: float) -> None:
        """Send nothing to that server for so long, because it asked for it."""
        loop = asyncio.get_running_loop()
        lane.not_before = max(lane.not_before, loop.time() + seconds)
        # A timer may fire a clock tick early.
        loop.call_at(lane.not_before + 0.01, self.kick)

    def kick(self) -> None:
        """Give out the turns that are free."""
        now = asyncio.get_running_loop().time()
        reserved = self._grant_suspects(now)
        progress = True
        while progress:
            progress = False
            for line in tuple(self._lines):
                if self._grant_next(line, reserved, now):
                    progress = True
                    self._lines.remove(line)  # whoever got a turn is the last to get the next
                    self._lines.append(line)

    def _grant_suspects(self, now: float) -> set[Lane]:
        """Let pages that must be alone have their lane, and keep all others off it till then."""
        reserved: set[Lane] = set()
        for line in self._lines:
            for waiter in tuple(line.suspects):
                if waiter.only is None or waiter.granted.done():
                    continue
                lane = waiter.only()
                if lane not in reserved and not lane.open and lane.takes(now):
                    line.suspects.remove(waiter)
                    lane.alone = True
                    self._grant(line, waiter, lane, now)
                reserved.add(lane)
        return reserved

    def _grant_next(self, line: Line, reserved: set[Lane], now: float) -> bool:
        while line.waiting and line.waiting[0].granted.done():  # cancelled a moment ago
            line.waiting.popleft()
        if not line.waiting or line.under_way >= line.limit:
            return False
        free = [lane for lane in line.lanes() if lane not in reserved and lane.takes(now)]
        if not free:
            return False
        least_busy = min(free, key=lambda lane: lane.load)
        self._grant(line, line.waiting.popleft(), least_busy, now)
        return True

    def _grant(self, line: Line, waiter: _Waiter, lane: Lane, now: float) -> None:
        self._count += 1
        ticket = Ticket(lane, self._count, now)
        lane.open[ticket.number] = ticket
        line.under_way += 1
        waiter.granted.set_result(ticket)

    async def _acquire(self, line: Line, waiter: _Waiter, again: bool) -> Ticket:  # noqa: FBT001
        queue = line.waiting if waiter.only is None else line.suspects
        if again:
            queue.appendleft(waiter)
        else:
            queue.append(waiter)
        self.kick()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            granted = waiter.granted
            if granted.done() and not granted.cancelled() and not granted.exception():
                self._give_back(line, granted.result())
            else:
                with contextlib.suppress(ValueError):
                    queue.remove(waiter)
                self.kick()
            raise

    def _give_back(self, line: Line, ticket: Ticket) -> None:
        lane = ticket.lane
        del lane.open[ticket.number]
        lane.alone = False
        line.under_way -= 1
        now = asyncio.get_running_loop().time()
        # A server does not take requests exactly in the order in which they were sent: whatever
        # was sent up to one full server later may have been before it. What was sent after that
        # was not, so that a page that hangs is found out though others go on for hours.
        reach = ticket.number - max(lane.limits, default=1)
        for other in lane.open.values():
            if other.number > reach:
                other.since = now
        self.kick()


_lock = threading.Lock()
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns() -> Turns:
    """Give the lanes and lines of the running event loop."""
    loop = asyncio.get_running_loop()
    with _lock:
        found = _turns.get(loop)
        if found is None:
            found = _turns[loop] = Turns()
        return found
