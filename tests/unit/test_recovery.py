"""A server that dies: who is asked, what is sent again, and which page is not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.fault_server import (
    FakeProvider,
    FaultServer,
    answer,
    die,
    marked_picture,
    reset,
    status,
)
from support.reading import INFO, pairing, read_all, read_one, reader

from deepseek_ocr_loaders import retry
from deepseek_ocr_loaders.errors import (
    QuarantinedPageError,
    RequestError,
    ServerDiedError,
    ServerUnreachableError,
)
from deepseek_ocr_loaders.page import PageResult
from deepseek_ocr_loaders.reading import is_fatal

if TYPE_CHECKING:
    from support.fault_server import ChatRequest, Step

    from deepseek_ocr_loaders.endpoint import Endpoint


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_backoff", lambda _state: 0.01)


def _until_killed(server: FaultServer) -> None:
    """Let the server answer only after its first restart, so that a test can wait for it."""
    server.script = lambda _r: answer(delay=0 if server.generation else 60)


async def test_pages_under_way_survive_a_death() -> None:
    with FaultServer() as server:
        _until_killed(server)
        provider = FakeProvider(server, restarts=1, restart_seconds=0.1)
        reading = asyncio.create_task(read_all(provider, 40, max_concurrency=8))
        while server.in_flight < 8:
            await asyncio.sleep(0.005)
        server.kill()
        results = await reading
    assert pairing(results) == list(range(40))
    assert server.generation == 1
    assert len(server.requests) <= 40 + 8


async def test_fault_32_a_page_that_kills_twice_is_not_sent_a_third_time() -> None:
    """Nothing that was beside it the first time is beside it the second time."""
    beside: list[int] = []

    async def script(request: ChatRequest) -> Step | None:
        if request.marker != 5:
            return answer(delay=0.2)
        await asyncio.sleep(0.1)
        beside.append(server.in_flight - 1)
        return die()

    with FaultServer(script) as server:
        provider = FakeProvider(server, restarts=5)
        results = await read_all(provider, 24, max_concurrency=6)
    assert pairing(results) == [None if n == 5 else n for n in range(24)]
    error = results[5]
    assert isinstance(error, QuarantinedPageError)
    assert "page 6" in str(error)
    assert not is_fatal(error)
    assert beside[0] > 0
    assert beside[1:] == [0]
    assert server.generation == 2


async def test_fault_32_two_pages_that_kill() -> None:
    with FaultServer(lambda r: die() if r.marker in {2, 3} else None) as server:
        results = await read_all(FakeProvider(server, restarts=9), 8, max_concurrency=8)
    assert pairing(results) == [0, 1, None, None, 4, 5, 6, 7]
    assert all(isinstance(results[n], QuarantinedPageError) for n in (2, 3))
    assert 3 <= server.generation <= 4


async def test_fault_32_500_then_503_at_health_then_gone() -> None:
    """The way in which vLLM dies: the page fails first, the port closes later."""
    served = 0

    def script(request: ChatRequest) -> Step | None:
        nonlocal served
        served += 1
        if served == 4:
            server.health = 503
            return status(500, "EngineCore encountered an issue")
        return status(500, "EngineDeadError") if server.health != 200 else None

    with FaultServer(script) as server:

        class Provider(FakeProvider):
            async def recover(self, failed: Endpoint) -> Endpoint | None:
                if server.health != 200:
                    await asyncio.to_thread(server.kill)
                    server.health = 200
                return await super().recover(failed)

        results = await read_all(Provider(server, restarts=1), 8, max_concurrency=2)
    assert pairing(results) == list(range(8))
    assert server.generation == 1


async def test_a_server_that_is_gone_ends_the_run_at_once() -> None:
    with FaultServer(lambda r: die() if r.index == 6 else None) as server:
        provider = FakeProvider(server)
        results = await read_all(provider, 200, max_concurrency=4)
    errors = [result for result in results if not isinstance(result, PageResult)]
    assert len(errors) >= 190
    assert {type(error) for error in errors} == {ServerUnreachableError}
    assert all(is_fatal(error) for error in errors if isinstance(error, Exception))
    assert provider.recoveries == 1
    assert len(server.requests) <= 10


async def test_restarts_that_are_used_up_end_the_run() -> None:
    with FaultServer(lambda _r: die()) as server:
        results = await read_all(FakeProvider(server, restarts=1), 6, retries=5)
    assert {type(result) for result in results} <= {ServerDiedError, QuarantinedPageError}
    assert any(isinstance(result, ServerDiedError) for result in results)


async def test_a_broken_connection_alone_restarts_nothing() -> None:
    with FaultServer([reset(), reset(), status(500)]) as server:
        provider = FakeProvider(server, restarts=3)
        results = await read_all(provider, 6)
    assert pairing(results) == list(range(6))
    assert server.generation == 0
    assert provider.recoveries >= 1


async def test_one_question_for_all_pages_of_a_dead_server() -> None:
    with FaultServer() as server:
        _until_killed(server)
        provider = FakeProvider(server, restarts=1, restart_seconds=0.2)
        reading = asyncio.create_task(read_all(provider, 32))
        while server.in_flight < 32:
            await asyncio.sleep(0.005)
        server.kill()
        assert pairing(await reading) == list(range(32))
    assert provider.recoveries == 1


async def test_attempts_count_those_that_a_death_ended() -> None:
    with FaultServer(lambda _r: die()) as server:
        with pytest.raises(RequestError) as caught:
            await read_one(FakeProvider(server, restarts=9), retries=0)
        assert len(server.requests) == 1
    assert caught.value.attempts == 1


async def test_a_replacement_with_another_address_and_key() -> None:
    class Provider(FakeProvider):
        async def recover(self, failed: Endpoint) -> Endpoint | None:
            return self.servers[1].endpoint(generation=failed.generation + 1)

        async def acquire(self) -> list[Endpoint]:
            return [self.servers[0].endpoint()]

    with (
        FaultServer(lambda r: die() if r.index == 3 else None, api_key="old") as first,
        FaultServer(api_key="new") as second,
    ):
        provider = Provider(first, second)
        async with reader(provider, max_concurrency=2) as open_reader:
            results = await asyncio.gather(
                *(open_reader.read(INFO, n, "", marked_picture(n)) for n in range(20))
            )
            assert open_reader.limit_key == (second.base_url,)
    assert pairing(results) == list(range(20))
    assert second.most_in_flight <= 2
    assert provider.released == 1


# --- several servers ------------------------------------------------------------------------


async def test_pages_are_spread_over_all_servers() -> None:
    with FaultServer(seconds=0.02) as first, FaultServer(seconds=0.02) as second:
        results = await read_all(FakeProvider(first, second), 60, max_concurrency=6)
    assert pairing(results) == list(range(60))
    assert (first.most_in_flight, second.most_in_flight) == (3, 3)
    assert min(len(first.requests), len(second.requests)) > 15


async def test_the_other_servers_go_on_when_one_is_gone() -> None:
    with (
        FaultServer(lambda r: die() if r.index == 2 else None, seconds=0.01) as first,
        FaultServer(seconds=0.01) as second,
    ):
        results = await read_all(FakeProvider(first, second), 60, max_concurrency=6)
    assert pairing(results) == list(range(60))
    assert len(first.requests) < 10


async def test_fault_32_a_page_that_kills_one_server_after_the_other() -> None:
    """Those that were beside it at the first death are not beside it at the second."""

    async def script(request: ChatRequest) -> Step | None:
        if request.marker != 5:
            return answer(delay=0.2)
        await asyncio.sleep(0.1)
        return die()

    with FaultServer(script) as first, FaultServer(script) as second, FaultServer(script) as third:
        results = await read_all(FakeProvider(first, second, third), 24, max_concurrency=12)
    assert pairing(results) == [None if n == 5 else n for n in range(24)]
    assert isinstance(results[5], QuarantinedPageError)


async def test_when_the_last_server_is_gone_the_run_ends() -> None:
    def script(request: ChatRequest) -> Step | None:
        return die() if request.index == 5 else None

    with FaultServer(script) as first, FaultServer(script) as second:
        results = await read_all(FakeProvider(first, second), 100, max_concurrency=4)
    assert isinstance(results[-1], ServerUnreachableError)


async def test_fifty_runs_at_once_stay_within_the_limit() -> None:
    with FaultServer(seconds=0.01) as server:
        runs: list[Any] = await asyncio.gather(
            *(read_all(server, range(4 * n, 4 * n + 4), max_concurrency=8) for n in range(50))
        )
    assert [pairing(run) for run in runs] == [list(range(4 * n, 4 * n + 4)) for n in range(50)]
    assert server.most_in_flight <= 8
    assert len(server.requests) == 200


@pytest.mark.parametrize(
    ("known", "given", "limit"),
    [
        ({}, {}, 64),
        ({"max_concurrency": 128}, {}, 144),
        ({"max_concurrency": 2, "engine": "rapidocr"}, {}, 3),
        ({"max_concurrency": 128}, {"max_concurrency": 5}, 5),
    ],
)
async def test_concurrency_follows_the_server_or_the_setting(
    known: dict[str, Any], given: dict[str, Any], limit: int
) -> None:
    with FaultServer() as server:
        async with reader(FakeProvider(server, **known), **given) as open_reader:
            assert open_reader.concurrency == limit


# --- cancelling -----------------------------------------------------------------------------


async def test_a_cancelled_page_is_aborted_at_the_server_and_frees_its_place() -> None:
    with FaultServer(lambda r: answer(delay=30) if r.marker != 9 else None) as server:
        async with reader(server, max_concurrency=4) as open_reader:
            tasks = [
                asyncio.create_task(open_reader.read(INFO, n, "", marked_picture(n)))
                for n in range(8)
            ]
            while server.in_flight < 4:
                await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            assert await asyncio.to_thread(server.wait_idle)
            assert server.aborted == 4
            assert len(server.requests) == 4
            after = await open_reader.read(INFO, 9, "", marked_picture(9))
            assert pairing([after]) == [9]


async def test_closing_the_reader_ends_what_is_under_way() -> None:
    with FaultServer(lambda _r: answer(delay=30)) as server:
        provider = FakeProvider(server)
        open_reader = reader(provider, max_concurrency=2)
        await open_reader.start()
        tasks = [
            asyncio.create_task(open_reader.read(INFO, n, "", marked_picture(n))) for n in range(6)
        ]
        while server.in_flight < 2:
            await asyncio.sleep(0.005)
        for task in tasks:
            task.cancel()
        await open_reader.aclose()
        await open_reader.aclose()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await asyncio.to_thread(server.wait_idle)
    assert provider.released >= 1


async def test_cancelling_during_a_restart() -> None:
    with FaultServer(lambda _r: die()) as server:
        provider = FakeProvider(server, restarts=1, restart_seconds=60)
        async with reader(provider) as open_reader:
            task = asyncio.create_task(open_reader.read(INFO, 0, "1", marked_picture(0)))
            while not provider.recoveries:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert len([t for t in asyncio.all_tasks() if not t.done()]) == 1
