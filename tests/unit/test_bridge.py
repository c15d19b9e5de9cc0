"""The synchronous bridge: inside loops, in threads, over forks, and when it is let go of."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from deepseek_ocr_loaders import bridge
from deepseek_ocr_loaders.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Counter:
    def __init__(self) -> None:
        self.started = 0
        self.closed = threading.Event()

    async def numbers(self, count: int) -> AsyncGenerator[int, None]:
        try:
            for number in range(count):
                self.started = number + 1
                await asyncio.sleep(0)
                yield number
        finally:
            await asyncio.sleep(0)
            self.closed.set()


def test_gives_everything_in_order_and_closes() -> None:
    counter = Counter()
    assert list(bridge.iterate(lambda: counter.numbers(5))) == [0, 1, 2, 3, 4]
    assert counter.closed.is_set()


def test_runs_no_step_ahead_of_the_consumer() -> None:
    counter = Counter()
    numbers = bridge.iterate(lambda: counter.numbers(100))
    assert counter.started == 0
    assert next(numbers) == 0
    assert counter.started == 1
    numbers.close()  # type: ignore[attr-defined]
    assert counter.closed.is_set()


def test_abandoned_generators_are_closed_by_garbage_collection() -> None:
    counter = Counter()
    numbers = bridge.iterate(lambda: counter.numbers(100))
    next(numbers)
    del numbers
    gc.collect()
    assert counter.closed.wait(10)


def test_two_generators_of_one_thread_can_be_interleaved() -> None:
    first = bridge.iterate(lambda: Counter().numbers(3))
    second = bridge.iterate(lambda: Counter().numbers(3))
    assert [next(first), next(second), next(first), next(second)] == [0, 0, 1, 1]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_fault_40_works_inside_a_running_loop(run: object) -> None:
    async def cell() -> list[int]:
        return list(bridge.iterate(lambda: Counter().numbers(3)))

    assert run(cell()) == [0, 1, 2]  # type: ignore[operator]


def test_errors_arrive_as_they_are() -> None:
    async def fail() -> AsyncGenerator[int, None]:
        yield 1
        msg = "the cause"
        raise ConfigurationError(msg)

    numbers = bridge.iterate(fail)
    assert next(numbers) == 1
    with pytest.raises(ConfigurationError, match="the cause"):
        next(numbers)


def test_a_call_from_the_loop_itself_is_refused_instead_of_hanging() -> None:
    async def nested() -> AsyncGenerator[list[int], None]:
        yield list(bridge.iterate(lambda: Counter().numbers(3)))

    with pytest.raises(ConfigurationError, match="own event loop"):
        list(bridge.iterate(nested))


def test_threads_share_the_loop() -> None:
    results: list[list[int]] = []

    def work() -> None:
        results.append(list(bridge.iterate(lambda: Counter().numbers(50))))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [list(range(50))] * 8


def _python(code: str, *, interrupt_after: str | None = None) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if interrupt_after is not None:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == interrupt_after
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize("again", ["pass", "signal.raise_signal(signal.SIGINT)"])
def test_ctrl_c_cancels_the_step_and_waits_for_its_end(again: str) -> None:
    done = _python(
        f"""
        import asyncio, signal
        from deepseek_ocr_loaders import bridge

        async def slow():
            try:
                print("waiting", flush=True)
                await asyncio.sleep(600)
                yield 1
            finally:
                {again}
                await asyncio.sleep(0.2)
                print("freed", flush=True)

        try:
            list(bridge.iterate(slow))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
        interrupt_after="waiting",
    )
    assert done.stdout.split() == ["freed", "interrupted"], done.stderr


@pytest.mark.parametrize("handed_over", [False, True])
@pytest.mark.parametrize("at_step", [1, 2])
def test_ctrl_c_while_a_step_is_handed_over(
    monkeypatch: pytest.MonkeyPatch, at_step: int, handed_over: bool
) -> None:
    events: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        events.append("begun")
        try:
            yield 1
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.01)
            events.append("freed")

    loop = bridge._get_background().loop
    hand_over = loop.call_soon_threadsafe

    def interrupted(*callback: Any) -> None:
        monkeypatch.undo()
        if handed_over:
            hand_over(*callback)
        raise KeyboardInterrupt

    values = bridge.iterate(numbers)
    if at_step == 2:
        next(values)
    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(values)
    assert events in ([["begun", "freed"]] if at_step == 2 else [[], ["begun", "freed"]])
    assert list(bridge.iterate(lambda: Counter().numbers(3))) == [0, 1, 2]


def test_a_generator_left_open_does_not_keep_the_program() -> None:
    done = _python(
        """
        import asyncio
        from deepseek_ocr_loaders import bridge

        async def numbers():
            try:
                while True:
                    yield 1
            finally:
                print("freed", flush=True)

        kept = bridge.iterate(numbers)
        next(kept)
        """
    )
    assert done.returncode == 0
    assert done.stdout.split() == ["freed"], done.stderr
    assert done.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_its_own_loop() -> None:
    done = _python(
        """
        import os, warnings
        warnings.simplefilter("ignore")
        from deepseek_ocr_loaders import bridge

        async def numbers():
            for n in range(3):
                yield n

        assert list(bridge.iterate(numbers)) == [0, 1, 2]
        pid = os.fork()
        if pid == 0:
            assert list(bridge.iterate(numbers)) == [0, 1, 2]
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """
    )
    assert done.returncode == 0, done.stderr
