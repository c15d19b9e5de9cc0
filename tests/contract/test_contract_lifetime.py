"""Generators that are interleaved, left, closed or broken hold nothing."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from contract.stage import FIRST, PAGES, in_thread, sockets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from contract.stage import Stage

ALL = list(range(FIRST, FIRST + PAGES))


def test_two_generators_can_be_interleaved_in_one_thread(stage: Stage) -> None:
    def interleave() -> list[Any]:
        first, second = stage.lazy(), stage.lazy()
        return [document for pair in zip(first, second, strict=True) for document in pair]

    assert stage.numbers(in_thread(interleave)) == [number for number in ALL for _ in (1, 2)]


def test_two_generators_of_one_object_can_be_interleaved(stage: Stage) -> None:
    made = stage.make()

    def interleave() -> list[Any]:
        first, second = stage.lazy(made), stage.lazy(made)
        return [document for pair in zip(first, second, strict=True) for document in pair]

    assert stage.numbers(in_thread(interleave)) == [number for number in ALL for _ in (1, 2)]


@pytest.mark.parametrize("how", ["close", "collected", "end", "error of the consumer"])
def test_files_and_connections_are_freed(stage: Stage, how: str) -> None:
    list(stage.lazy())  # what is kept for the whole process is there now
    before = sockets()

    def leave() -> None:
        documents = stage.lazy()
        next(documents)
        if how == "close":
            documents.close()
        elif how == "end":
            list(documents)
        elif how == "error of the consumer":
            for _ in documents:
                raise KeyError

    for _ in range(3):
        try:
            in_thread(leave)
        except KeyError:
            gc.collect()
    assert stage.freed(before), (stage.open_files(), sockets(), before)


def test_an_abandoned_generator_stops_no_other(stage: Stage) -> None:
    def abandon() -> list[Any]:
        left = stage.lazy()
        next(left)
        return list(stage.lazy())

    assert stage.numbers(in_thread(abandon)) == ALL


async def _all_but_slowly(documents: AsyncIterator[Any]) -> None:
    async for _ in documents:
        await asyncio.sleep(60)


@pytest.mark.parametrize("how", ["break", "aclose", "cancel"])
async def test_files_and_connections_are_freed_async(stage: Stage, how: str) -> None:
    before, task = 0, None
    for turn in range(3):
        documents = stage.subject.alazy(stage.make(), stage.pdf)
        if documents is None:
            pytest.skip("has no asynchronous way")
        if turn == 0:
            _ = [document async for document in documents]
            before = sockets()
        elif how == "cancel":
            task = asyncio.create_task(_all_but_slowly(documents))
            await asyncio.sleep(0.3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            async for _ in documents:
                break
            if how == "aclose":
                await documents.aclose()  # type: ignore[attr-defined]
    del documents
    task = None
    gc.collect()
    # The loop goes on, as it does in a web server: nothing may wait for its end.
    freed = await asyncio.to_thread(stage.freed, before)
    assert freed, (stage.open_files(), sockets(), before)


def test_a_loop_that_ends_before_the_documents_do_ends_in_peace(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    held: list[Any] = []

    async def program() -> None:
        documents = stage.subject.alazy(stage.make(), stage.pdf)
        if documents is None:
            pytest.skip("has no asynchronous way")
        held.append(documents)
        await anext(documents)

    in_thread(lambda: asyncio.run(program()))
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    assert stage.open_files() == 0
    assert stage.server.wait_idle()
