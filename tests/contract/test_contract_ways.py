"""Whichever method is called, and however often: the same Documents."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import pytest
from contract.stage import FIRST, PAGES
from support.fault_server import answer

if TYPE_CHECKING:
    from contract.stage import Seen, Stage


async def _alazy(stage: Stage) -> list[Seen]:
    documents = stage.subject.alazy(stage.make(), stage.pdf)
    if documents is None:
        pytest.skip("has no asynchronous way")
    return stage.look([document async for document in documents])


async def _aload(stage: Stage) -> list[Seen]:
    loading = stage.subject.aload(stage.make(), stage.pdf)
    if loading is None:
        pytest.skip("has no asynchronous way")
    return stage.look(await loading)


@pytest.mark.parametrize("way", ["lazy", "alazy", "aload"])
def test_every_way_gives_what_load_gives(stage: Stage, way: str) -> None:
    expected = stage.load()
    assert [seen.metadata for seen in expected]
    got = (
        stage.look(stage.lazy())
        if way == "lazy"
        else asyncio.run({"alazy": _alazy, "aload": _aload}[way](stage))
    )
    assert [seen.text for seen in got] == [seen.text for seen in expected]
    assert [seen.metadata for seen in got] == [seen.metadata for seen in expected]
    assert [seen.id for seen in got] == [seen.id for seen in expected]


def test_pages_come_in_their_order(stage: Stage) -> None:
    chance = random.Random(8)
    stage.server.script = lambda _: answer(delay=chance.uniform(0, 0.1))
    assert stage.numbers(stage.lazy()) == list(range(FIRST, FIRST + PAGES))


async def test_pages_come_in_their_order_async(stage: Stage) -> None:
    chance = random.Random(9)
    stage.server.script = lambda _: answer(delay=chance.uniform(0, 0.1))
    documents = stage.subject.alazy(stage.make(), stage.pdf)
    if documents is None:
        pytest.skip("has no asynchronous way")
    got = [document async for document in documents]
    assert stage.numbers(got) == list(range(FIRST, FIRST + PAGES))


def test_one_object_can_be_used_twice(stage: Stage) -> None:
    made = stage.make()
    first = stage.look(stage.subject.load(made, stage.pdf))
    again = stage.look(stage.subject.load(made, stage.pdf))
    assert first == again


def test_a_touched_file_gives_the_same_documents(stage: Stage) -> None:
    before = stage.load()
    os.utime(stage.pdf, (1_000_000_000, 1_000_000_000))
    assert stage.load() == before


def test_nothing_is_shared_between_runs(stage: Stage) -> None:
    made = stage.make()
    first = stage.subject.load(made, stage.pdf)
    for document in first:
        document.metadata["mine"] = True
    assert not any("mine" in seen.metadata for seen in stage.look(stage.lazy(made)))
