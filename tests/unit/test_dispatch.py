"""Turns: limits over all loads of a loop, fairness, being alone, time limits, cancellation."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from deepseek_ocr_loaders.dispatch import Lane, Line, Ticket, Turns, turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class _Server:
    """A lane that counts who is there."""

    def __init__(self, pool: Turns, url: str, limit: int) -> None:
        self.lane = pool.join(url, limit)
        self.most = 0

    @asynccontextmanager
    async def watch(self, ticket: Ticket) -> AsyncGenerator[None, None]:
        assert ticket.lane is self.lane
        self.most = max(self.most, len(self.lane.open))
        yield


async def _work(pool: Turns, line: Line, seen: list[int], seconds: float = 0.002) -> None:
    async with pool.turn(line) as ticket:
        seen.append(len(ticket.lane.open))
        await asyncio.sleep(seconds)


async def test_fifty_loads_of_one_loop_share_one_limit() -> None:
    seen: list[int] = []

    async def load() -> None:
        pool = turns()
        lane = pool.join("http://a/v1", 8)
        line = Line(8, lambda: [lane])
        pool.add(line)
        try:
            await asyncio.gather(*(_work(pool, line, seen) for _ in range(10)))
        finally:
            pool.remove(line)
            pool.leave("http://a/v1", 8)

    await asyncio.gather(*(load() for _ in range(50)))
    assert len(seen) == 500
    assert max(seen) == 8
    assert not turns()._lanes
    assert not turns()._lines


async def test_two_loops_have_their_own() -> None:
    here = turns()
    assert turns() is here
    assert await asyncio.to_thread(lambda: asyncio.run(_other_loop())) is not here


async def _other_loop() -> Turns:
    return turns()


async def test_a_load_keeps_its_own_smaller_limit() -> None:
    pool = Turns()
    lane = pool.join("http://a/v1", 2)
    pool.join("http://a/v1", 16)
    small, large = Line(2, lambda: [lane]), Line(16, lambda: [lane])
    pool.add(small)
    pool.add(large)
    most = 0

    async def work() -> None:
        nonlocal most
        async with pool.turn(small):
            most = max(most, small.under_way)
            await asyncio.sleep(0.002)

    together: list[int] = []
    await asyncio.gather(
        *(work() for _ in range(20)), *(_work(pool, large, together) for _ in range(60))
    )
    assert most == 2
    assert max(together) == 16


async def test_a_small_load_is_not_stuck_behind_a_large_one() -> None:
    pool = Turns()
    lane = pool.join("http://a/v1", 1)
    first, second = Line(1, lambda: [lane]), Line(1, lambda: [lane])
    pool.add(first)
    pool.add(second)
    order: list[str] = []

    async def work(line: Line, name: str) -> None:
        async with pool.turn(line):
            order.append(name)
            await asyncio.sleep(0)

    large = [asyncio.create_task(work(first, "large")) for _ in range(50)]
    await asyncio.sleep(0)
    await work(second, "small")
    await asyncio.gather(*large)
    assert order.index("small") <= 3


async def test_the_least_busy_server_is_taken() -> None:
    pool = Turns()
    small, large = pool.join("http://a/v1", 2), pool.join("http://b/v1", 6)
    line = Line(8, lambda: [small, large])
    pool.add(line)
    release = asyncio.Event()
    where: list[Lane] = []

    async def work() -> None:
        async with pool.turn(line) as ticket:
            where.append(ticket.lane)
            await release.wait()

    tasks = [asyncio.create_task(work()) for _ in range(12)]
    await asyncio.sleep(0.01)
    assert (len(small.open), len(large.open)) == (2, 6)
    release.set()
    await asyncio.gather(*tasks)
    assert len(where) == 12


async def test_a_page_that_was_sent_before_goes_first() -> None:
    pool = Turns()
    lane = pool.join("http://a/v1", 1)
    line = Line(1, lambda: [lane])
    pool.add(line)
    order: list[str] = []

    async def work(name: str, *, again: bool) -> None:
        async with pool.turn(line, again=again):
            order.append(name)
            await asyncio.sleep(0)

    names = [("first", False), ("second", False), ("third", False), ("again", True)]
    await asyncio.gather(*(work(name, again=again) for name, again in names))
    assert order == ["first", "again", "second", "third"]


async def test_a_suspect_is_alone_and_the_others_wait() -> None:
    pool = Turns()
    lane = pool.join("http://a/v1", 4)
    line = Line(4, lambda: [lane])
    pool.add(line)
    seen: list[int] = []
    alone: list[int] = []

    async def suspect() -> None:
        async with pool.turn(line, only=lambda: lane):
            for _ in range(5):
                alone.append(len(lane.open))
                await asyncio.sleep(0.001)

    tasks = [asyncio.create_task(_work(pool, line, seen)) for _ in range(8)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(suspect()) for _ in range(3)]
    tasks += [asyncio.create_task(_work(pool, line, seen)) for _ in range(8)]
    await asyncio.gather(*tasks)
    assert set(alone) == {1}
    assert len(alone) == 15
    assert max(seen) == 4
    assert len(seen) == 16


async def test_a_server_that_asks_for_peace_gets_it() -> None:
    pool = Turns()
    lane = pool.join("http://a/v1", 4)
    line = Line(4, lambda: [lane])
    pool.add(line)
    loop = asyncio.get_running_loop()
    pool.pause(lane, 0.2)
    began = loop.time()
    await _work(pool, line, [])
    assert loop.time() - began >= 0.2


async def test_held_lanes_send_nothing() -> None:
    pool = Turns()
    lane = pool.join("http://a/v1", 4)
    line = Line(4, lambda: [lane])
    pool.add(line)
    with pool.hold(lane):
        task = asyncio.create_task(_work(pool, line, []))
        await asyncio.sleep(0.02)
        assert not task.done()
        assert not lane.open
    await task


async def test_waiting_ends_with_the_error_of_the_run() -> None:
    pool = Turns()
    lane = pool.join("http://a/v1", 1)
    line = Line(1, lambda: [lane])
    pool.add(line)
    tasks = [asyncio.create_task(_work(pool, line, [])) for _ in range(4)]
    await asyncio.sleep(0)
    pool.remove(line, RuntimeError("gone"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(r) for r in results] == ["None", "gone", "gone", "gone"]
    assert not lane.open


async def test_the_clock_starts_anew_when_others_are_answered() -> None:
    pool = Turns()
    lane = pool.join("http://a/v1", 3)
    line = Line(3, lambda: [lane])
    pool.add(line)
    loop = asyncio.get_running_loop()

    async def work(seconds: float, limit: float) -> float:
        async with pool.turn(line) as ticket:
            began = loop.time()
            try:
                async with ticket.within(limit):
                    await asyncio.sleep(seconds)
            except TimeoutError:
                return loop.time() - began
            return 0.0

    early, late, answered = await asyncio.gather(work(9, 0.2), work(9, 0.2), work(0.15, 9))
    assert answered == 0
    assert early >= 0.35  # 0.15 beside the third, and its own 0.2
    assert late >= 0.35


async def test_a_page_that_hangs_is_found_out_though_others_go_on() -> None:
    pool = Turns()
    lane = pool.join("http://a/v1", 3)
    line = Line(3, lambda: [lane])
    pool.add(line)
    answered = 0

    async def hangs() -> int:
        async with pool.turn(line) as ticket:
            with pytest.raises(TimeoutError):
                async with ticket.within(0.3):
                    await asyncio.sleep(60)
            return answered

    async def works() -> None:
        nonlocal answered
        async with pool.turn(line):
            await asyncio.sleep(0.02)
            answered += 1

    after, *_ = await asyncio.gather(hangs(), *(works() for _ in range(200)))
    assert after < 150


async def test_cancelling_at_any_moment_frees_the_place() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    pool = Turns()
    lanes = [pool.join(f"http://{name}/v1", 3) for name in "ab"]
    line = Line(5, lambda: lanes)
    pool.add(line)
    finished = 0

    async def work() -> None:
        nonlocal finished
        only = (lambda: lanes[0]) if rng.random() < 0.1 else None
        turn = pool.turn(line, again=rng.random() < 0.2, only=only)
        async with turn as ticket, ticket.within(5):
            await asyncio.sleep(rng.random() * 0.004)
        finished += 1

    tasks = [asyncio.create_task(work()) for _ in range(400)]
    kept = set(rng.sample(range(400), 200))
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.001)
        for number in rng.sample(range(400), 8):
            if number not in kept:
                tasks[number].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [r for r in results if isinstance(r, Exception)]
    assert all(results[number] is None for number in kept)
    assert finished >= 200
    assert not any(lane.open or lane.alone or lane.holds for lane in lanes)
    assert line.under_way == 0
    await asyncio.wait_for(work(), 5)


async def test_a_grant_that_meets_a_cancellation_is_given_back() -> None:
    pool = Turns()
    lane = pool.join("http://a/v1", 1)
    line = Line(1, lambda: [lane])
    pool.add(line)
    async with pool.turn(line):
        waiting = asyncio.create_task(_work(pool, line, []))
        await asyncio.sleep(0)
    waiting.cancel()  # the place is its own already, but it does not run again
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not lane.open
    assert line.under_way == 0
