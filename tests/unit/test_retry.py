"""The waits of the retry policy, without waiting."""

from __future__ import annotations

from typing import Any

import pytest
from tenacity import Future, RetryCallState

from deepseek_ocr_loaders import retry
from deepseek_ocr_loaders.client import Fault
from deepseek_ocr_loaders.retry import RETRY_AFTER_LIMIT, policy


def _state(attempt: int, error: BaseException) -> RetryCallState:
    state = RetryCallState(policy(3), None, (), {})
    state.attempt_number = attempt
    state.set_exception((type(error), error, None))
    assert isinstance(state.outcome, Future)
    return state


def test_waits_are_random_and_grow() -> None:
    fault = Fault("broke")
    waits = [[retry._wait(_state(attempt, fault)) for _ in range(300)] for attempt in (1, 4, 12)]
    assert all(len(set(found)) > 200 for found in waits)
    assert 0.5 < max(waits[0]) <= 1
    assert 4 < max(waits[1]) <= 8
    assert 20 < max(waits[2]) <= 30


def test_retry_after_is_honoured_and_capped() -> None:
    asked = [retry._wait(_state(1, Fault("busy", retry_after=7))) for _ in range(100)]
    assert 7 <= min(asked) < max(asked) <= 8
    too_long = retry._wait(_state(1, Fault("busy", retry_after=86_400)))
    assert RETRY_AFTER_LIMIT <= too_long <= RETRY_AFTER_LIMIT * 1.2


def test_nothing_is_waited_for_a_server_that_was_replaced() -> None:
    fault = Fault("broke")
    fault.at_once = True
    assert retry._wait(_state(3, fault)) == 0


@pytest.mark.parametrize("retries", [0, 1, 7])
async def test_the_last_fault_itself_comes_out(
    retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_backoff", lambda _state: 0)
    raised: list[Fault] = []

    async def work() -> Any:
        raised.append(Fault(f"number {len(raised)}"))
        raise raised[-1]

    with pytest.raises(Fault) as caught:
        await policy(retries)(work)
    assert caught.value is raised[-1]
    assert len(raised) == 1 + retries


@pytest.mark.parametrize(
    "error",
    [
        Fault("no", status_code=400),
        Fault("no", status_code=401),
        Fault("no", status_code=403),
        Fault("no", status_code=404),
        Fault("no", status_code=413),
        Fault("no", status_code=422),
        RuntimeError("a bug of ours"),
    ],
)
async def test_what_does_not_heal_comes_out_at_once(error: Exception) -> None:
    calls = []

    async def work() -> Any:
        calls.append(1)
        raise error

    with pytest.raises(type(error)) as caught:
        await policy(5)(work)
    assert caught.value is error
    assert len(calls) == 1
