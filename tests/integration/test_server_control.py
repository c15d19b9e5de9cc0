"""Keeping a server up, listing, stopping, and what `doctor` says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from typing import TYPE_CHECKING

import pytest
from support.servers import (
    Launch,
    Script,
    engine_processes,
    folder_in,
    launch,
    marked_processes,
    script,
    starts,
    state_dir,
    state_of,
    wait_for,
)

from deepseek_ocr_loaders import DeepSeekOCRServer
from deepseek_ocr_loaders.engines.base import ServerOptions
from deepseek_ocr_loaders.errors import ServerStartError
from deepseek_ocr_loaders.server.control import (
    Check,
    doctor,
    options_of,
    serve,
    status,
    stop_all,
)
from deepseek_ocr_loaders.server.provider import provider_for
from deepseek_ocr_loaders.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["launch", "script", "state_dir"]

SERVE = """
from deepseek_ocr_loaders.server.control import options_of, serve
serve(options_of("vllm", None, gpu_memory_utilization=0.5),
      on_ready=lambda found: print(found[0].base_url, flush=True))
"""


async def acquire(**options: object) -> str:
    provider = provider_for(Settings.create({"engine": "vllm", **options}))
    (endpoint,) = await provider.acquire()
    await provider.release()
    return endpoint.base_url


def test_status_tells_of_a_running_server_and_of_its_end(script: Script, state_dir: Path) -> None:
    script()
    assert status() == []
    with DeepSeekOCRServer(engine="vllm") as server:
        (found,) = status()
        assert found.alive
        assert (found.phase, found.engine, found.model) == ("ready", "vllm", server.model)
        assert (found.base_url, found.pid) == (server.base_url, server.pid)
        assert found.users == (os.getpid(),)
        assert not found.kept
        assert server.api_key is not None
        assert server.api_key.get_secret_value() not in json.dumps(found.as_dict())
    (found,) = status()
    assert (found.phase, found.alive, found.pid, found.users) == ("stopped", False, None, ())


def test_served_in_the_foreground_it_serves_loaders_with_other_options(
    script: Script, state_dir: Path, launch: Launch
) -> None:
    record = script()
    keeper = launch(SERVE)
    assert keeper.stdout is not None
    address = keeper.stdout.readline().strip()
    assert asyncio.run(acquire()) == address
    assert status()[0].kept
    assert len(starts(record)) == 1
    keeper.send_signal(signal.SIGINT)
    keeper.wait(30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_served_in_the_foreground_it_ends_with_its_program(
    script: Script, state_dir: Path, launch: Launch, number: signal.Signals
) -> None:
    script()
    keeper = launch(SERVE)
    assert keeper.stdout is not None
    keeper.stdout.readline()
    keeper.send_signal(number)
    keeper.wait(30)
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_served_in_the_background_it_stays_until_it_is_stopped(
    script: Script, state_dir: Path, launch: Launch
) -> None:
    record = script()
    keeper = launch(SERVE.replace("0.5),", "0.5), detach=True,"))
    assert keeper.wait(60) == 0
    before = state_of(state_dir)
    # Longer than a server waits for a next user.
    wait_for(lambda: folder_in(state_dir).is_kept(before))
    asyncio.run(asyncio.sleep(4))
    assert asyncio.run(acquire()) == before.base_url
    assert len(starts(record)) == 1
    (stopped,) = stop_all()
    assert stopped.base_url == before.base_url
    assert marked_processes(str(state_dir)) == []
    assert stop_all() == []


def test_failed_serve_raises_and_leaves_nothing(script: Script, state_dir: Path) -> None:
    script(exit=1, lines=["CUDA out of memory"])
    with pytest.raises(ServerStartError, match="out of memory"):
        serve(options_of("vllm", None))
    assert status()[0].phase == "failed"
    assert marked_processes(str(state_dir)) == []


def test_stop_ends_a_server_in_use(script: Script, state_dir: Path) -> None:
    script()
    with DeepSeekOCRServer(engine="vllm"):
        assert len(stop_all()) == 1
        assert marked_processes(str(state_dir)) == []
    assert state_of(state_dir).failure["message"] == "The server was told to stop."


def test_stop_ends_what_a_killed_supervisor_left(
    script: Script, state_dir: Path, launch: Launch
) -> None:
    script(deaf=True)
    keeper = launch(SERVE)
    assert keeper.stdout is not None
    keeper.stdout.readline()
    state = state_of(state_dir)
    assert state.family.leader is not None
    for process in marked_processes(str(state_dir)):
        if process.pid != state.family.leader.pid:
            process.kill()
    wait_for(lambda: len(marked_processes(str(state_dir))) == 1)
    (lost,) = status()
    assert lost.phase == "lost"
    assert any(c.name == "servers" and "stop" in c.remedy for c in doctor())
    stop_all()
    assert engine_processes(state_dir) == []
    assert marked_processes(str(state_dir)) == []


def test_stop_kills_a_supervisor_that_hangs(script: Script, state_dir: Path) -> None:
    script()
    server = DeepSeekOCRServer(engine="vllm").start()
    os.kill(state_of(state_dir).supervisor.pid, signal.SIGSTOP)
    stop_all(timeout=1)
    wait_for(lambda: not marked_processes(str(state_dir)))
    server.stop()


# --- doctor ----------------------------------------------------------------------------------


def fake_tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    driver: str = "580.82.07",
    used: int = 4,
    capability: str = "9.0",
    total: int = 81559,
    apps: str = "",
) -> None:
    row = f"0, GPU-1, NVIDIA H100, {driver}, {total}, {used}, {capability}"
    fake_tool(
        tmp_path / "tools",
        "nvidia-smi",
        f"print({apps!r} if 'compute-apps' in sys.argv[1] else {row!r})",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    for name in ("CUDA_VISIBLE_DEVICES", "DEEPSEEK_OCR_VLLM", "DEEPSEEK_OCR_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vllm: str, runtime: str | None
) -> None:
    fake_tool(tmp_path / "env/bin", "vllm", "") if (tmp_path / "env").exists() else None
    (tmp_path / "env/bin").mkdir(parents=True, exist_ok=True)
    fake_tool(tmp_path / "env/bin", "vllm", "")
    site = tmp_path / "env/lib/python3.12/site-packages"
    for name in filter(None, (f"vllm-{vllm}", runtime)):
        folder = site / f"{name}.dist-info"
        folder.mkdir(parents=True)
        project, _, version = name.partition("-")
        (folder / "METADATA").write_text(f"Name: {project}\nVersion: {version}\n")
    monkeypatch.setenv("DEEPSEEK_OCR_VLLM", str(tmp_path / "env/bin/vllm"))


def named(checks: list[Check], name: str) -> Check:
    found = [check for check in checks if check.name == name]
    assert found, name
    return found[0]


@pytest.mark.parametrize(
    ("vllm", "runtime", "driver", "verdict"),
    [
        ("0.26.0", "nvidia_cuda_runtime-13.0.96", "550.54.15", "error"),
        ("0.26.0", "nvidia_cuda_runtime-13.0.96", "580.65.06", "ok"),
        ("0.26.0", "nvidia_cuda_runtime-13.0.96", "580.20", "error"),
        ("0.26.0", None, "570.10", "error"),
        ("0.12.0", "nvidia_cuda_runtime_cu12-12.8.90", "535.104.05", "ok"),
        ("0.12.0", None, "470.10", "error"),
        ("0.26.0", "torch-2.11.0+cu129", "550.54.15", "ok"),
        ("0.26.0", "torch-2.11.0+cu130", "550.54.15", "error"),
    ],
)
def test_doctor_compares_driver_and_cuda_runtime(  # noqa: PLR0917
    state_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vllm: str,
    runtime: str | None,
    driver: str,
    verdict: str,
) -> None:
    machine(tmp_path, monkeypatch, driver=driver)
    install(tmp_path, monkeypatch, vllm, runtime)
    check = named(doctor(), "driver")
    assert check.status == verdict
    # Never sends anyone to install a toolkit.
    text = check.detail + check.remedy
    assert "toolkit is not needed" in text or "toolkit need not be installed or updated" in text


def test_doctor_tells_who_holds_the_gpu(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch, used=79000, apps="4242, /usr/bin/python3, 78900")
    check = named(doctor(), "gpu memory")
    assert check.status == "error"
    assert "4242 python3 78900 MiB" in check.detail
    machine(tmp_path, monkeypatch, used=40000, apps="4242, /usr/bin/python3, 39900")
    check = named(doctor(), "gpu memory")
    assert (check.status, "gpu_memory_utilization=0.4" in check.remedy) == ("warning", True)


@pytest.mark.parametrize(
    ("capability", "total", "verdict"),
    [
        ("9.0", 81559, "ok"),
        ("6.1", 11264, "error"),
        ("7.5", 15360, "warning"),
        ("8.6", 6144, "error"),
    ],
)
def test_doctor_knows_which_gpus_will_do(  # noqa: PLR0917
    state_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capability: str,
    total: int,
    verdict: str,
) -> None:
    machine(tmp_path, monkeypatch, capability=capability, total=total)
    install(tmp_path, monkeypatch, "0.26.0", None)
    assert named(doctor(), "gpu").status == verdict


def test_doctor_finds_a_context_above_the_models(state_dir: Path) -> None:
    options = ServerOptions("vllm", "m", extra_args=("--max-model-len", "32768"))
    check = named(doctor(options), "arguments")
    assert check.status == "error"
    assert "8192" in check.detail
    assert named(doctor(ServerOptions("vllm", "m")), "arguments").status == "ok"
    tools = ServerOptions("vllm", "m", extra_args=("--enable-auto-tool-choice",))
    assert named(doctor(tools), "arguments").status == "warning"


def test_doctor_without_gpu_and_without_vllm(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DEEPSEEK_OCR_VLLM", raising=False)
    checks = doctor()
    assert not [check for check in checks if check.status == "error"]
    assert named(checks, "engine").status == "warning"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check = named(doctor(), "engine")
    assert check.status == "error"
    for way in ("DEEPSEEK_OCR_BASE_URL", "vllm", "[cpu]"):
        assert way in check.remedy


def test_doctor_looks_at_the_model_and_the_disk(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert "is fetched at the first start" in named(doctor(), "model").detail
    monkeypatch.setattr("shutil.disk_usage", lambda _: os.terminal_size((0, 0)) and _Usage())
    assert named(doctor(), "disk").status == "error"
    snapshot = tmp_path / "hf/hub/models--deepseek-ai--DeepSeek-OCR/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model-1.safetensors").touch()
    assert named(doctor(), "model").detail.startswith("deepseek-ai/DeepSeek-OCR is in the cache")
    assert named(doctor(model=str(tmp_path / "none")), "model").status == "error"


class _Usage:
    free = 2 * 1024**3


def test_doctor_sees_leaked_variables_and_hides_secrets(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PORT", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("DEEPSEEK_OCR_BASE_URL", "https://user:pw@host/v1?key=secret")
    monkeypatch.setenv("DEEPSEEK_OCR_API_KEY", "topsecret")
    checks = doctor()
    assert named(checks, "environment").status == "warning"
    text = json.dumps([check.as_dict() for check in checks])
    for secret in ("pw@", "secret", "topsecret"):
        assert secret not in text
