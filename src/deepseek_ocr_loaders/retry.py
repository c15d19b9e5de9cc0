"""The one retry policy: which faults are tried again, how often, and after which wait."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from deepseek_ocr_loaders.client import Fault

if TYPE_CHECKING:
    from tenacity import RetryCallState

__all__ = ["RETRY_AFTER_LIMIT", "policy"]

RETRY_AFTER_LIMIT = 60.0
"""Seconds that a server can make one page wait; a wrong clock must not stop the night's run."""

_backoff = wait_random_exponential(multiplier=1, max=30)


def policy(retries: int) -> AsyncRetrying:
    """Give the policy for one request: at most 1 + `retries` attempts, then the last fault itself.

    Args:
        retries: Tries beyond the first.
    """
    return AsyncRetrying(
        stop=stop_after_attempt(1 + retries),
        retry=retry_if_exception(_heals),
        wait=_wait,
        reraise=True,
    )


def _heals(error: BaseException) -> bool:
    return isinstance(error, Fault) and error.heals


def _wait(state: RetryCallState) -> float:
    """Give the seconds before the next attempt, random so that the pages do not come in step."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, Fault):
        if error.at_once:
            return 0.0
        if error.retry_after is not None:
            asked = min(error.retry_after, RETRY_AFTER_LIMIT)
            return asked + random.uniform(0, 0.1 * asked + 0.1)  # noqa: S311 - no secret
    return _backoff(state)
