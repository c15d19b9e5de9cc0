"""How many pages to keep at a server that does not say how many it works on.

vLLM tells in `/metrics` how many requests it works on and how many wait. With none waiting while
all of ours are there it could take more; a long queue keeps pages from other clients and makes
their time limits meaningless.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.server.discovery import metrics

if TYPE_CHECKING:
    from deepseek_ocr_loaders.endpoint import Endpoint

__all__ = ["CHECK_SECONDS", "DEFAULT_CONCURRENCY", "Load", "load_of", "next_limit"]

DEFAULT_CONCURRENCY = 64
"""Pages at once to begin with, and for a server without `/metrics`."""

SMALLEST, LARGEST = 4, 512
"""What no queue, however long or short, leads beyond."""

CHECK_SECONDS = 2.0

_GAUGE = re.compile(
    r"^vllm:num_requests_(running|waiting)(?:\{[^}\n]*\})?[ \t]+([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Load:
    """What a server does at a moment.

    Attributes:
        running: Requests that it works on, of all clients and over all its engines.
        waiting: Requests that wait for their turn.
    """

    running: int
    waiting: int


async def load_of(endpoint: Endpoint) -> Load | None:
    """Give what the server does; None where it does not say."""
    text = await metrics(endpoint)
    found: dict[str, float] = {}
    for name, value in _GAUGE.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    if found.keys() != {"running", "waiting"}:
        return None
    return Load(round(found["running"]), round(found["waiting"]))


def next_limit(limit: int, load: Load, *, full: bool, settled: bool) -> int:
    """Give how many pages to keep at the server from now on.

    Args:
        limit: As it was.
        load: What the server does.
        full: True where as many pages are there as `limit` allows.
        settled: True after a queue was seen: the number is about right, and steps are small.
    """
    spare = max(1, limit // 8)  # a few wait, so that a place that becomes free is filled at once
    if load.waiting > spare:
        return max(SMALLEST, limit - (load.waiting - spare))
    if full and not load.waiting:
        return min(LARGEST, limit + (spare if settled else limit))
    return limit
