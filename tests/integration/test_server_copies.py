"""Servers side by side on one large GPU: each a managed server of its own, used as one."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil
import pymupdf
import pytest
from support.servers import (
    Launch,
    Script,
    engine_processes,
    launch,
    marked_processes,
    script,
    starts,
    state_dir,
    wait_for,
)

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRServer
from deepseek_ocr_loaders.client import PageClient
from deepseek_ocr_loaders.engines.rapidocr import RapidOCREngine
from deepseek_ocr_loaders.engines.vllm import VllmEngine
from deepseek_ocr_loaders.errors import ServerDiedError, ServerError, ServerStartError
from deepseek_ocr_loaders.server import copies
from deepseek_ocr_loaders.server.control import options_of, serve, status, stop_all
from deepseek_ocr_loaders.server.provider import folder_of, provider_for
from deepseek_ocr_loaders.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deepseek_ocr_loaders.client import Reply
    from deepseek_ocr_loaders.server.control import ServerStatus

__all__ = ["launch", "script", "state_dir"]

TWO = """
from deepseek_ocr_loaders.engines.vllm import VllmEngine
VllmEngine.copies = lambda self, options: 2
"""


@pytest.fixture(autouse=True)
def _two(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in (VllmEngine, RapidOCREngine):
        monkeypatch.setattr(engine, "copies", lambda _, __: 2)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


def urls(server: DeepSeekOCRServer) -> list[str]:
    return [endpoint.base_url for endpoint in server.endpoints]


def alive(wanted: int) -> bool:
    return [found.phase for found in status()].count("ready") == wanted


def test_both_are_started_at_once_and_both_end(script: Script, state_dir: Path) -> None:
    record = script(delay=0.5)
    with DeepSeekOCRServer(engine="vllm") as server:
        assert len(set(urls(server))) == 2
        assert server.base_url == urls(server)[0]
        assert [endpoint.copy for endpoint in server.endpoints] == [0, 1]
        assert len({found.pid for found in status()}) == 2
        assert all(url in repr(server) for url in urls(server))
    assert marked_processes(str(state_dir)) == []
    assert len(starts(record)) == 2
    assert {found.phase for found in status()} == {"stopped"}


async def test_the_next_loader_of_the_program_uses_both_again(
    script: Script, state_dir: Path
) -> None:
    record = script()
    for _ in range(3):
        provider = provider_for(Settings.create({"engine": "vllm"}))
        assert len(await provider.acquire()) == 2
        await provider.release()
    assert len(starts(record)) == 2
    stop_all()


def test_a_second_program_attaches_to_both(script: Script, state_dir: Path, launch: Launch) -> None:
    record = script()
    with DeepSeekOCRServer(engine="vllm") as server:
        other = launch(
            # What it thinks of the machine is of no account: the servers run already.
            "from deepseek_ocr_loaders import DeepSeekOCRServer\n"
            "with DeepSeekOCRServer(engine='vllm') as server:\n"
            "    print(sorted(one.base_url for one in server.endpoints))"
        )
        assert other.stdout is not None
        assert other.stdout.read() == f"{sorted(urls(server))}\n"
        assert alive(2)
    assert len(starts(record)) == 2


def test_one_alone_is_joined_by_no_second(
    script: Script, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = script()
    monkeypatch.setattr(VllmEngine, "copies", lambda _, __: 1)
    with DeepSeekOCRServer(engine="vllm") as first:
        # It took the whole GPU.
        monkeypatch.setattr(VllmEngine, "copies", lambda _, __: 2)
        with DeepSeekOCRServer(engine="vllm") as second:
            assert urls(second) == urls(first)
    assert len(starts(record)) == 1


def test_the_program_goes_on_with_the_first_if_the_second_does_not_start(
    script: Script, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = script(second=1, delay=0.5, lines=["torch.OutOfMemoryError: CUDA out of memory"])
    with DeepSeekOCRServer(engine="vllm") as server:
        assert len(urls(server)) == 1
        assert "server 2 of 2 side by side is not there" in caplog.text
        assert "out of memory" in caplog.text
        assert "with other settings" not in caplog.text  # its own sibling is none
        caplog.clear()
        # Nor is it tried again and again, with the same end.
        with DeepSeekOCRServer(engine="vllm") as again:
            assert urls(again) == urls(server)
        assert caplog.text == ""
        assert len(starts(record)) == 2
    assert marked_processes(str(state_dir)) == []
    # A new life of the first is a new try.
    with DeepSeekOCRServer(engine="vllm") as server:
        assert len(starts(record)) == 4


def second() -> ServerStatus:
    (found,) = (one for one in status() if one.id.endswith("-1"))
    return found


async def test_nobody_waits_for_the_second_while_it_is_restarted(
    script: Script, state_dir: Path, tmp_path: Path
) -> None:
    die = tmp_path / "die"
    script(second_dies=str(die))
    with DeepSeekOCRServer(engine="vllm") as server:
        die.touch()  # and what is started then dies as well
        wait_for(lambda: second().phase == "restarting")
        wait_for(lambda: second().restarts >= 1)
        provider = provider_for(Settings.create({"engine": "vllm"}))
        found = await provider.acquire()
        assert [endpoint.base_url for endpoint in found] == [server.base_url]
        await provider.release()


def test_a_second_that_was_killed_is_started_again(script: Script, state_dir: Path) -> None:
    record = script()
    with DeepSeekOCRServer(engine="vllm"):
        victim = second()
        assert victim.supervisor is not None
        os.kill(victim.supervisor, signal.SIGKILL)
        wait_for(lambda: not second().alive)
        with DeepSeekOCRServer(engine="vllm") as again:
            assert len(again.endpoints) == 2
    assert len(starts(record)) == 3


def test_stopped_while_only_the_second_is_waited_for(
    script: Script, state_dir: Path, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    script(second_hangs=True)
    server = DeepSeekOCRServer(engine="vllm")
    starting = pool.submit(server.start)
    wait_for(lambda: alive(1))
    time.sleep(0.5)
    server.stop()
    with pytest.raises(ServerError, match="cancelled"):
        starting.result(60)
    assert caplog.text == ""
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_the_second_is_not_waited_for_for_long(
    script: Script,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(copies, "PATIENCE", 1.0)
    script(second_hangs=True)
    with DeepSeekOCRServer(engine="vllm") as server:
        assert len(server.endpoints) == 1
        assert "not ready 1 s after the first" in caplog.text
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_a_program_can_end_while_a_thread_waits_for_them(
    script: Script, state_dir: Path, launch: Launch
) -> None:
    script(no_listen=True)
    user = launch(
        TWO + "import threading\n"
        "from deepseek_ocr_loaders import DeepSeekOCRServer\n"
        "from deepseek_ocr_loaders.server.control import status\n"
        "server = DeepSeekOCRServer(engine='vllm')\n"
        "threading.Thread(target=server.start, daemon=True).start()\n"
        "while len(status()) < 2: pass\n"
    )
    assert user.wait(60) == 0
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_serve_interrupted_while_they_start_leaves_neither(
    script: Script, state_dir: Path, launch: Launch
) -> None:
    script(no_listen=True)
    user = launch(
        TWO + "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from deepseek_ocr_loaders.server.control import options_of, serve\n"
        "try:\n"
        "    serve(options_of('vllm', None))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "    input()\n"
    )
    wait_for(lambda: len(status()) == 2)
    wait_for(lambda: len(engine_processes(state_dir)) == 2)
    user.send_signal(signal.SIGINT)
    assert user.stdout is not None
    assert user.stdout.readline() == "interrupted\n"
    # It returned when they were gone.
    assert engine_processes(state_dir) == []


def test_no_error_of_the_second_stops_the_first(
    script: Script, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script()
    folder = folder_of(options_of("vllm", None))
    (folder.copy(1).path / "options.json").mkdir()  # no ServerError
    with DeepSeekOCRServer(engine="vllm") as server:
        assert len(server.endpoints) == 1
    assert "server 2 of 2" in caplog.text


def test_if_the_first_dies_for_good_serve_lets_the_second_go(
    script: Script, state_dir: Path
) -> None:
    script()

    def kill(ready: list[ServerStatus]) -> None:
        assert ready[0].supervisor is not None
        os.kill(ready[0].supervisor, signal.SIGKILL)

    with pytest.raises(ServerDiedError):
        serve(options_of("vllm", None), on_ready=kill)
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_if_the_first_does_not_start_the_second_does_not_stay(
    script: Script, state_dir: Path
) -> None:
    script(exit=7, lines=["the driver is from another century"])
    with pytest.raises(ServerStartError, match="another century"):
        DeepSeekOCRServer(engine="vllm").start()
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_stopped_while_it_starts(script: Script, state_dir: Path, pool: ThreadPoolExecutor) -> None:
    script(no_listen=True)
    server = DeepSeekOCRServer(engine="vllm")
    starting = pool.submit(server.start)
    wait_for(lambda: len(status()) == 2)
    server.stop()
    with pytest.raises(ServerError, match="cancelled"):
        starting.result(60)
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_a_killed_program_leaves_neither(script: Script, state_dir: Path, launch: Launch) -> None:
    script()
    user = launch(
        TWO + "from deepseek_ocr_loaders import DeepSeekOCRServer\n"
        "server = DeepSeekOCRServer(engine='vllm').start()\n"
        "print('ready', flush=True)\ninput()"
    )
    assert user.stdout is not None
    assert user.stdout.readline() == "ready\n"
    assert alive(2)
    user.kill()
    user.wait()
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_serve_keeps_both_up_and_loaders_find_them(
    script: Script, state_dir: Path, launch: Launch
) -> None:
    record = script()
    printed: list[list[str]] = []
    serve(
        options_of("vllm", None),
        detach=True,
        on_ready=lambda ready: printed.append([found.base_url for found in ready]),
    )
    assert all(found.kept for found in status())
    with DeepSeekOCRServer(engine="vllm") as server:
        assert [urls(server)] == printed
    assert alive(2)
    user = launch(
        "from deepseek_ocr_loaders.server.provider import provider_for\n"
        "from deepseek_ocr_loaders.settings import Settings\n"
        "import asyncio\n"
        "found = asyncio.run(provider_for(Settings.create({})).acquire())\n"
        "print([one.base_url for one in found])"
    )
    assert user.stdout is not None
    assert user.stdout.read() == f"{printed[0]}\n"
    assert len(stop_all()) == 2
    assert len(starts(record)) == 2


def test_pickled_it_attaches_to_both(script: Script, state_dir: Path) -> None:
    script()
    with DeepSeekOCRServer(engine="vllm") as server:
        with pickle.loads(pickle.dumps(server)) as other:
            assert urls(other) == urls(server)
        assert alive(2)


# --- pages, with the embedded engine ---------------------------------------------------------


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    pytest.importorskip("rapidocr")
    path = tmp_path / "harbour.pdf"
    with pymupdf.open() as document:
        for number in range(1, 13):
            page = document.new_page(width=300, height=200)
            page.insert_text((30, 80), f"Harbour lights {number}", fontsize=24)
        document.save(path)
    return path


def test_pages_go_to_both(pdf: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    send = PageClient.send

    async def count(self: PageClient, body: bytes) -> Reply:
        sent.append(str(self._client.base_url))
        return await send(self, body)

    monkeypatch.setattr(PageClient, "send", count)
    with DeepSeekOCRServer(engine="rapidocr") as server:
        docs = DeepSeekOCRLoader(pdf, server=server).load()
        assert [doc.metadata["page"] for doc in docs] == list(range(12))
        assert {url.rstrip("/") for url in sent} == set(urls(server))
        assert len(sent) == 12


def test_one_dies_and_the_other_goes_on_until_it_is_back(
    pdf: Path, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with DeepSeekOCRServer(engine="rapidocr") as server:
        before = {found.id: (found.pid, found.base_url) for found in status()}
        pages = DeepSeekOCRLoader(pdf, server=server).lazy_load()
        docs = [next(pages)]
        victim = second()
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        docs += list(pages)
        assert [doc.metadata["page"] for doc in docs] == list(range(12))
        assert all("Harbour" in doc.page_content for doc in docs)
        wait_for(lambda: alive(2))
        for found in status():
            same = (found.pid, found.base_url) == before[found.id]
            assert same is (found.id != victim.id)
        assert urls(server) == [
            found.base_url for found in sorted(status(), key=lambda found: found.id)
        ]
    assert marked_processes(str(state_dir)) == []
    assert not psutil.pid_exists(victim.pid)
