"""`serve` and the others as real programs, with the engine that runs anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLE = Path(__file__).parents[2] / "examples" / "samples" / "labels.pdf"
PROGRAM = [sys.executable, "-m", "deepseek_ocr_loaders"]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    given = {
        name: value for name, value in os.environ.items() if not name.startswith("DEEPSEEK_OCR_")
    }
    given["DEEPSEEK_OCR_STATE_DIR"] = str(tmp_path / "state")
    given["DEEPSEEK_OCR_ENGINE"] = "rapidocr"
    yield given
    subprocess.run([*PROGRAM, "stop"], env=given, check=True, timeout=200, capture_output=True)


def _call(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_serve_load_status_and_ctrl_c(environment: dict[str, str]) -> None:
    serving = subprocess.Popen(
        [*PROGRAM, "serve"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    address = serving.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:")
    (found,) = json.loads(_call(environment, "status", "--json").stdout)
    assert found["base_url"] == address
    loaded = _call(environment, "load", str(SAMPLE), "--pages", "1", "-f", "json")
    assert loaded.returncode == 0, loaded.stderr
    (document,) = json.loads(loaded.stdout)
    assert document["metadata"]["ocr_engine"] == "rapidocr"
    # The server that was there has read it, and no second one was started.
    assert [s["pid"] for s in json.loads(_call(environment, "status", "--json").stdout)] == [
        found["pid"]
    ]
    serving.send_signal(signal.SIGINT)
    assert serving.wait(120) == 130
    serving.stdout.close()
    assert not Path(f"/proc/{found['pid']}").exists()


def test_serve_in_the_background_until_stop(environment: dict[str, str]) -> None:
    started = _call(environment, "serve", "--detach")
    assert started.returncode == 0, started.stderr
    (found,) = json.loads(_call(environment, "status", "--json").stdout)
    assert found["kept"]
    stopped = _call(environment, "stop")
    assert "stopped rapidocr" in stopped.stdout
    deadline = time.monotonic() + 60
    while Path(f"/proc/{found['pid']}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{found['pid']}").exists()


def test_doctor_looks_at_this_machine(environment: dict[str, str]) -> None:
    looked = _call(environment, "doctor", "--json")
    names = {check["name"] for check in json.loads(looked.stdout)}
    assert {"versions", "engine", "gpu", "model", "servers"} <= names
