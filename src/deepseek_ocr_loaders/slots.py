"""A limit of things under way that grows when there is room for more."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

__all__ = ["Slots", "shared_slots"]


class Slots(asyncio.Semaphore):
    """A semaphore whose limit can be raised while it is in use.

    Args:
        capacity: How many may hold it at once.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.capacity = capacity

    def grow(self, capacity: int) -> None:
        """Raise the limit to `capacity`; it is never lowered."""
        while self.capacity < capacity:
            self.capacity += 1
            self.release()


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[object, int], Slots]] = (
    WeakKeyDictionary()
)


def shared_slots(key: object, capacity: int) -> Slots:
    """Give the limit of all runs of the running event loop that began with the same values.

    Fifty documents that are loaded at once must not hold fifty times as many pictures.

    Args:
        key: What the runs have in common: their servers.
        capacity: Where the limit begins.
    """
    slots = _shared.setdefault(asyncio.get_running_loop(), {})
    return slots.setdefault((key, capacity), Slots(capacity))
