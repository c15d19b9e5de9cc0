"""Inside running loops: notebooks, web servers, uvloop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from contract.stage import FIRST, PAGES, in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from contract.stage import Stage

ALL = list(range(FIRST, FIRST + PAGES))
RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@RUNNERS
def test_fault_40_synchronous_methods_work_inside_a_running_loop(
    stage: Stage, run: Callable[[Any], Any]
) -> None:
    async def cell() -> list[int]:
        return stage.numbers(stage.lazy()) + stage.numbers(
            stage.subject.load(stage.make(), stage.pdf)
        )

    assert in_thread(lambda: run(cell())) == ALL * 2


@RUNNERS
def test_fault_40_asynchronous_methods_work_on_it(stage: Stage, run: Callable[[Any], Any]) -> None:
    async def cell() -> list[int]:
        made = stage.make()
        numbers: list[int] = []
        if (documents := stage.subject.alazy(made, stage.pdf)) is not None:
            numbers += stage.numbers([document async for document in documents])
        if (loading := stage.subject.aload(made, stage.pdf)) is not None:
            numbers += stage.numbers(await loading)
        return numbers

    numbers = in_thread(lambda: run(cell()))
    assert numbers in (ALL, ALL * 2)


def test_one_object_serves_one_loop_after_the_other(stage: Stage) -> None:
    made = stage.make()

    async def cell() -> list[int]:
        documents = stage.subject.alazy(made, stage.pdf)
        if documents is None:
            pytest.skip("has no asynchronous way")
        return stage.numbers([document async for document in documents])

    assert in_thread(lambda: asyncio.run(cell())) == ALL
    assert stage.numbers(stage.lazy(made)) == ALL
    assert in_thread(lambda: uvloop.run(cell())) == ALL


async def test_many_at_once_on_one_loop(stage: Stage) -> None:
    made = stage.make()

    async def one() -> list[int]:
        documents = stage.subject.alazy(made, stage.pdf)
        if documents is None:
            pytest.skip("has no asynchronous way")
        return stage.numbers([document async for document in documents])

    assert await asyncio.gather(*(one() for _ in range(5))) == [ALL] * 5


@pytest.mark.parametrize("way", ["alazy", "aload"])
async def test_fault_49_the_loop_ticks_while_pages_are_read(stage: Stage, way: str) -> None:
    ticked = threading.Event()
    blocked = threading.Event()

    def page_work() -> None:
        # A page is done only when the loop has turned meanwhile.
        ticked.clear()
        if not ticked.wait(5):
            blocked.set()
            stage.on_page = None

    async def tick() -> None:
        while True:
            ticked.set()
            await asyncio.sleep(0.001)

    stage.on_page = page_work
    ticker = asyncio.create_task(tick())
    made = stage.make()
    if way == "aload":
        loading = stage.subject.aload(made, stage.pdf)
        documents = [] if loading is None else await loading
    else:
        each = stage.subject.alazy(made, stage.pdf)
        documents = [] if each is None else [document async for document in each]
    ticker.cancel()
    if not documents:
        pytest.skip("has no asynchronous way")
    assert not blocked.is_set(), "the loop stood still while a page was read"
    assert stage.numbers(documents) == ALL


async def test_fault_49_the_loop_ticks_while_the_server_reads(stage: Stage) -> None:
    stage.only("options")
    ticks = 0

    async def script(_: object) -> None:
        # The server is in another thread, so it sees whether the client's loop turns.
        start = ticks
        for _ in range(1000):
            if ticks > start + 5:
                return
            await asyncio.sleep(0.01)
        stood_still.set()

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    stood_still = threading.Event()
    stage.server.script = script
    ticker = asyncio.create_task(tick())
    documents = stage.subject.alazy(stage.make(), stage.pdf)
    assert documents is not None
    got = [document async for document in documents]
    ticker.cancel()
    assert not stood_still.is_set()
    assert stage.numbers(got) == ALL
