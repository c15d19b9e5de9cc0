"""Fixtures for tests with managed servers: a state folder each, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from deepseek_ocr_loaders.server import holds
from deepseek_ocr_loaders.server.state import ServerFolder, ServerState
from support import fake_vllm

Script = Callable[..., Path]
Launch = Callable[[str], "subprocess.Popen[str]"]
SOURCE = Path(__file__).resolve().parents[2] / "src"


def wait_for(condition: Callable[[], Any], *, seconds: float = 90.0, what: str = "") -> Any:
    """Wait until a condition holds; the limit only keeps a broken test from hanging."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"waited {seconds:.0f} s for {what or condition}")


def marked_processes(mark: str) -> list[psutil.Process]:
    """Give all living processes that work in a test's state folder, or were told of it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if "resource_tracker" in " ".join(process.cmdline()):
                continue  # multiprocessing's own, which lives as long as this process
            told = process.environ().get("DEEPSEEK_OCR_STATE_DIR") == mark
            if told or process.cwd().startswith(mark):
                found.append(process)
    return found


def engine_processes(state_dir: Path) -> list[psutil.Process]:
    """Give the living engines (not the supervisors) of a state folder's servers."""
    out = []
    with suppress(FileNotFoundError):
        for folder in state_dir.glob("*/*/state.json"):
            state = ServerState.from_json(json.loads(folder.read_text()))
            if state and (leader := state.family.leader) and leader.alive():
                out.append(psutil.Process(leader.pid))
    return out


def state_of(state_dir: Path) -> ServerState:
    """Give the record of the only server of a state folder."""
    (path,) = state_dir.glob("*/*/state.json")
    state = ServerState.from_json(json.loads(path.read_text()))
    assert state is not None
    return state


def folder_in(state_dir: Path) -> ServerFolder:
    (path,) = state_dir.glob("*/*/state.json")
    return ServerFolder(path.parent)


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder of the test's own; afterwards nothing that was started under it is left."""
    folder = tmp_path / "state"
    monkeypatch.setenv("DEEPSEEK_OCR_STATE_DIR", str(folder))
    for name in ("DEEPSEEK_OCR_BASE_URL", "DEEPSEEK_OCR_ENGINE", "DEEPSEEK_OCR_MODEL"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    for hold in list(holds._holds.values()):
        if str(hold.folder.path).startswith(str(folder)):
            with hold._lock:
                hold._users = 0
                hold._drop(linger=0)
    deadline = time.monotonic() + 90
    while (left := marked_processes(str(folder))) and time.monotonic() < deadline:
        time.sleep(0.05)
    names = [(process.pid, _command(process)) for process in left]
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    assert not names, f"left behind: {names}"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return "gone"


@pytest.fixture
def script(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Put a fake `vllm` first on PATH; called with its script, gives the file of its starts."""
    monkeypatch.delenv("DEEPSEEK_OCR_VLLM", raising=False)
    record = tmp_path / "starts.jsonl"

    def set_script(*, version: str | None = None, **what: Any) -> Path:
        executable = fake_vllm.install(tmp_path / "env", version=version)
        monkeypatch.setenv("PATH", f"{executable.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_VLLM", json.dumps({"record": str(record), **what}))
        return record

    return set_script


def starts(record: Path) -> list[dict[str, Any]]:
    """Give what the fake recorded at each of its starts."""
    with suppress(FileNotFoundError):
        return [json.loads(line) for line in record.read_text().splitlines()]
    return []


def program(text: str) -> list[str]:
    """Give the command line of a user's program."""
    return [sys.executable, "-c", text]


@pytest.fixture
def launch(state_dir: Path) -> Iterator[Launch]:
    """Start users' programs; afterwards they are gone and their pipes are closed."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            program(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
