"""The managed server with a real vLLM on the CPU: the real architecture, without weights."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest
from support import vllm
from support.servers import (
    Launch,
    engine_processes,
    launch,
    marked_processes,
    program,
    state_dir,
    state_of,
    wait_for,
)
from support.vllm import real_vllm

from deepseek_ocr_loaders import DeepSeekOCRLoader

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["launch", "real_vllm", "state_dir"]

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("real_vllm"),
]


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    return vllm.small_pdf(tmp_path / "small.pdf")


def descendants(state_dir: Path) -> list[psutil.Process]:
    (engine,) = engine_processes(state_dir)
    return engine.children(recursive=True)


def alive(family: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in family:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_life_with_a_worker_that_dies(pdf: Path, state_dir: Path) -> None:
    with vllm.make_server() as server:
        before = server.endpoint
        assert before.engine == "vllm"
        assert before.version is not None
        assert before.max_model_len == vllm.MAX_MODEL_LEN
        assert before.max_concurrency == 4
        argv = (engine_processes(state_dir)[0]).cmdline()
        assert "--logits-processors" in argv
        assert before.api_key is not None
        assert before.api_key.get_secret_value() not in " ".join(argv)

        # A page: noise as text, everything else real.
        options = {"server": server, "detail": "low", "skip_blank": False, "on_error": "record"}
        (document,) = DeepSeekOCRLoader(pdf, **options).load()
        assert document.metadata["ocr_engine"] == "vllm"

        # A second process attaches.
        code = (
            "import os\nfrom deepseek_ocr_loaders import DeepSeekOCRServer\n"
            "server = DeepSeekOCRServer(engine='vllm', "
            "model=os.environ['DEEPSEEK_OCR_TEST_MODEL'], "
            f"extra_args={vllm.ARGUMENTS!r}, env={vllm.VARIABLES!r})\n"
            "print(server.start().base_url)\nserver.stop()\n"
        )
        seen = subprocess.run(program(code), capture_output=True, text=True, check=True).stdout
        assert seen.strip() == server.base_url
        assert state_of(state_dir).generation == before.generation

        # The worker dies; the page that follows is read by the restarted server.
        vllm.worker(state_dir).kill()
        after = asyncio.run(server.recover(before))
        assert after is not None
        assert after.generation == before.generation + 1
        (document,) = DeepSeekOCRLoader(pdf, **options).load()
        assert document.metadata["ocr_engine"] == "vllm"

        request = urllib.request.Request(f"{server.base_url}/models")
        assert server.api_key is not None
        request.add_header("Authorization", f"Bearer {server.api_key.get_secret_value()}")
        with urllib.request.urlopen(request) as reply:
            assert json.load(reply)["data"][0]["id"] == server.model
        family = [*engine_processes(state_dir), *descendants(state_dir)]
    assert marked_processes(str(state_dir)) == []
    # By process too: vLLM's own children rename themselves and hide their environment.
    assert not alive(family)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_program_that_ends(
    state_dir: Path, launch: Launch, number: signal.Signals
) -> None:
    user = launch(
        "import os, time\nfrom deepseek_ocr_loaders import DeepSeekOCRServer\n"
        "server = DeepSeekOCRServer(engine='vllm', model=os.environ['DEEPSEEK_OCR_TEST_MODEL'], "
        f"extra_args={vllm.ARGUMENTS!r}, env={vllm.VARIABLES!r})\n"
        "print(server.start().base_url, flush=True)\ntime.sleep(3600)\n"
    )
    assert user.stdout is not None
    assert user.stdout.readline().startswith("http://127.0.0.1:")
    family = [*engine_processes(state_dir), *descendants(state_dir)]
    assert len(family) >= 3
    user.send_signal(number)
    user.wait()
    wait_for(lambda: not alive(family))
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_api_server_that_is_killed_leaves_no_orphans(state_dir: Path) -> None:
    with vllm.make_server() as server:
        before = server.endpoint
        (engine,) = engine_processes(state_dir)
        orphans = descendants(state_dir)
        engine.kill()
        after = asyncio.run(server.recover(before))
        assert after is not None
        # Left alone they would live on and hold the GPU.
        assert not alive(orphans)
