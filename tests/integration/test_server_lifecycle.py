"""The life of a managed server, with a scripted engine in real processes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from support.servers import (
    Launch,
    Script,
    engine_processes,
    folder_in,
    launch,
    marked_processes,
    program,
    script,
    starts,
    state_dir,
    state_of,
    wait_for,
)

from deepseek_ocr_loaders import DeepSeekOCRServer
from deepseek_ocr_loaders.errors import (
    ConfigurationError,
    PortTakenError,
    ServerDiedError,
    ServerError,
    ServerStartError,
    ServerUnreachableError,
)
from deepseek_ocr_loaders.server import holds
from deepseek_ocr_loaders.server.lease import scan
from deepseek_ocr_loaders.server.provider import provider_for
from deepseek_ocr_loaders.settings import Settings

__all__ = ["launch", "script", "state_dir"]

START = """
import sys, time
from deepseek_ocr_loaders import DeepSeekOCRServer
server = DeepSeekOCRServer(engine="vllm").start()
print(server.base_url, server.pid, flush=True)
"""


def server(**options: object) -> DeepSeekOCRServer:
    return DeepSeekOCRServer(engine="vllm", **options)  # type: ignore[arg-type]


def ask(server: DeepSeekOCRServer, path: str = "/models", key: str | None = None) -> int:
    if key is None:
        assert server.api_key is not None
        key = server.api_key.get_secret_value()
    request = urllib.request.Request(
        server.base_url + path, headers={"Authorization": f"Bearer {key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


# --- start and stop --------------------------------------------------------------------


def test_with_block_starts_and_ends_everything(script: Script, state_dir: Path) -> None:
    record = script()
    with server() as running:
        assert ask(running) == 200
        assert ask(running, key="wrong") == 401
        assert running.engine == "vllm"
        assert running.model == "deepseek-ai/DeepSeek-OCR"
        assert running.endpoint.version == "9.9.9"
        assert running.endpoint.max_model_len == 8192
        pid = running.pid
        assert pid is not None
        assert running.base_url.startswith("http://127.0.0.1:")
    # Synchronous: nothing lives when the block has ended.
    assert not psutil.pid_exists(pid)
    assert marked_processes(str(state_dir)) == []
    assert len(starts(record)) == 1
    assert list(folder_in(state_dir).leases.iterdir()) == []


def test_exception_in_the_block_ends_it_too(script: Script, state_dir: Path) -> None:
    script()
    with pytest.raises(RuntimeError, match="of the user"), server():
        raise RuntimeError("of the user")
    assert marked_processes(str(state_dir)) == []


def test_start_and_stop_may_be_called_twice(script: Script) -> None:
    record = script()
    one = server()
    one.stop()
    assert one.start() is one.start()
    one.stop()
    one.stop()
    one.close()
    with pytest.raises(ConfigurationError, match="not started"):
        _ = one.base_url
    with one:
        assert ask(one) == 200
    assert len(starts(record)) == 2


async def test_async_with_keeps_the_loop_ticking(script: Script) -> None:
    script(delay=1)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.02)

    ticker = asyncio.create_task(tick())
    async with server() as running:
        assert ask(running) == 200
    ticker.cancel()
    assert ticks > 20


async def test_cancelled_start_leaves_nothing(script: Script, state_dir: Path) -> None:
    script(no_listen=True)

    async def use() -> None:
        async with server():
            pytest.fail("it never becomes ready")

    task = asyncio.create_task(use())
    await asyncio.to_thread(wait_for, lambda: engine_processes(state_dir))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_for, lambda: not marked_processes(str(state_dir)))


def test_key_is_random_and_in_no_command_line_and_no_log(script: Script, state_dir: Path) -> None:
    record = script(lines=["starting"])
    keys = []
    for _ in range(2):
        with server(env={"HF_TOKEN": "t0ken-of-the-user"}) as running:
            assert running.api_key is not None
            key = running.api_key.get_secret_value()
            keys.append(key)
            for process in marked_processes(str(state_dir)):
                assert key not in " ".join(process.cmdline())
            assert running.log_file is not None
            assert key not in running.log_file.read_text()
            assert key not in repr(running)
            assert key not in repr(running.endpoint)
            assert starts(record)[-1]["env"]["VLLM_API_KEY"] == key
            assert (folder_in(state_dir).path / "options.json").exists()
    assert len(set(keys)) == 2
    assert len(keys[0]) >= 32
    left = [path for path in state_dir.rglob("*") if path.is_file()]
    assert not [path for path in left if keys[1] in path.read_text() or "t0ken" in path.read_text()]


def test_engine_that_prints_the_key_does_not_get_it_into_the_log(
    script: Script, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    script(lines=["token hf_abcdefghijklmnop"])
    with server() as running:
        assert running.log_file is not None
        assert "hf_abcdefghijklmnop" not in running.log_file.read_text()
        assert "token ***" in running.log_file.read_text()


def test_state_is_for_its_owner_only(script: Script, state_dir: Path) -> None:
    script()
    with server():
        for path in [state_dir, *state_dir.rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path


def test_symlinked_state_folder_is_not_followed(
    script: Script, state_dir: Path, tmp_path: Path
) -> None:
    script()
    (tmp_path / "elsewhere").mkdir()
    state_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ServerError, match="is a link"):
        server().start()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    state_dir.unlink()


def test_symlink_in_place_of_the_log_is_not_followed(
    script: Script, state_dir: Path, tmp_path: Path
) -> None:
    script()
    with server() as running:
        log = running.log_file
    assert log is not None
    victim = tmp_path / "victim"
    victim.write_text("precious")
    log.unlink()
    log.symlink_to(victim)
    with pytest.raises(ServerError):
        server().start()
    assert victim.read_text() == "precious"


def test_removed_state_folder_ends_the_server(script: Script, state_dir: Path) -> None:
    script()
    one = server().start()
    shutil.rmtree(state_dir)
    wait_for(lambda: not marked_processes(str(state_dir)))
    one.stop()
    with server() as another:
        assert ask(another) == 200


# --- sharing ---------------------------------------------------------------------------


def test_two_in_one_process_share_one_engine(script: Script, state_dir: Path) -> None:
    record = script()
    with server() as one, server() as two:
        assert one.base_url == two.base_url
        two.stop()
        assert ask(one) == 200
    assert len(starts(record)) == 1
    assert marked_processes(str(state_dir)) == []


def test_other_options_make_another_server(script: Script) -> None:
    record = script()
    with server() as one, server(extra_args=["--max-num-seqs", "7"]) as two:
        assert one.base_url != two.base_url
        assert two.endpoint.max_concurrency == 7
    assert len(starts(record)) == 2


def test_threads_that_start_at_once_share_one_engine(script: Script) -> None:
    record = script(delay=0.5)
    servers = [server() for _ in range(8)]
    threads = [threading.Thread(target=one.start) for one in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.base_url for one in servers}) == 1
    for one in servers:
        one.stop()
    assert len(starts(record)) == 1


def test_fault_39_two_programs_at_once_start_one_engine(
    launch: Launch, script: Script, state_dir: Path, tmp_path: Path
) -> None:
    record = script(only=str(tmp_path / "only.lock"), delay=0.5)
    code = START + "time.sleep(1.0)\nserver.stop()\n"
    programs = [launch(code) for _ in range(4)]
    outputs = [one.communicate(timeout=60)[0] for one in programs]
    assert [one.returncode for one in programs] == [0] * 4
    assert len({output.split()[0] for output in outputs}) == 1
    assert len(starts(record)) == 1
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_fault_39_first_stop_does_not_end_the_server_of_the_other(
    launch: Launch, script: Script, state_dir: Path
) -> None:
    script()
    other = launch(START + "sys.stdin.readline()\nserver.stop()")
    address = first_line(other).split()[0]
    with server() as mine:
        assert mine.base_url == address
    assert len(engine_processes(state_dir)) == 1
    other.communicate("go\n", timeout=30)
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_fault_39_stale_records_of_a_killed_starter(
    launch: Launch, script: Script, state_dir: Path
) -> None:
    script(delay=2)
    starter = launch(START)
    wait_for(lambda: engine_processes(state_dir))
    starter.kill()
    starter.wait()
    # Attaches to what has begun, or starts afresh: either way it is served.
    with server() as running:
        assert ask(running) == 200
    assert marked_processes(str(state_dir)) == []


@pytest.mark.parametrize("forge", ["boot", "pid reused", "garbage"])
def test_stale_record_never_touches_a_process_of_someone_else(
    script: Script, state_dir: Path, forge: str
) -> None:
    script()
    with server():
        folder = folder_in(state_dir)
        forged = json.loads((folder.path / "state.json").read_text())
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    try:
        started = Path(f"/proc/{bystander.pid}/stat").read_text().split()[21]
        identity = {"pid": bystander.pid, "started": started}
        forged["phase"] = "ready"
        forged["family"]["leader"] = forged["family"]["others"] = None
        if forge == "boot":
            forged["family"]["boot"] = "an earlier start of the machine"
        else:
            identity["started"] = "12345"
        forged["family"]["leader"] = identity
        forged["family"]["others"] = [identity]
        text = "{broken" if forge == "garbage" else json.dumps(forged)
        (folder.path / "state.json").write_text(text)
        with server() as running:
            assert ask(running) == 200
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_next_user_within_the_linger_time_finds_the_server_running(
    launch: Launch, script: Script, state_dir: Path
) -> None:
    record = script()
    for _ in range(2):
        # Ends without stop(): the server stays for a moment.
        assert launch(START).wait(60) == 0
        assert len(engine_processes(state_dir)) == 1
    assert len(starts(record)) == 1
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_a_process_keeps_its_lease_between_runs(script: Script, state_dir: Path) -> None:
    record = script()

    async def run() -> str:
        provider = provider_for(Settings.create({"engine": "vllm"}))
        (endpoint,) = await provider.acquire()
        await provider.release()
        await provider.release()
        return endpoint.base_url

    first = asyncio.run(run())
    # Longer than the server waits for a next user, so that only the lease keeps it.
    time.sleep(4)
    assert asyncio.run(run()) == first
    assert len(starts(record)) == 1


def test_fault_39_server_that_is_only_kept_makes_room_for_another(
    script: Script, tmp_path: Path
) -> None:
    record = script(only=str(tmp_path / "only.lock"))

    async def run() -> None:
        provider = provider_for(Settings.create({"engine": "vllm"}))
        await provider.acquire()
        await provider.release()

    asyncio.run(run())
    # The engine fails if a sibling is alive, as one does that finds its GPU full.
    with server(gpu_memory_utilization=0.5) as running:
        assert ask(running) == 200
        with pytest.raises(ServerStartError, match="with other settings run at the same time"):
            server(gpu_memory_utilization=0.6).start()
    assert len(starts(record)) == 3


def test_an_idle_process_gives_its_server_back(
    script: Script, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script()
    monkeypatch.setattr(holds, "IDLE", 0.2)

    async def run() -> None:
        provider = provider_for(Settings.create({"engine": "vllm"}))
        await provider.acquire()
        await provider.release()

    asyncio.run(run())
    wait_for(lambda: not marked_processes(str(state_dir)))


# --- however the user's program ends ---------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_fault_33_nothing_survives_the_users_program(
    launch: Launch, script: Script, state_dir: Path, number: signal.Signals
) -> None:
    script(grandchild="group")
    user = launch(START + "time.sleep(600)")
    first_line(user)
    assert len(marked_processes(str(state_dir))) >= 4  # user, supervisor, reaper, engine
    user.send_signal(number)
    user.wait()
    wait_for(lambda: not marked_processes(str(state_dir)))


@pytest.mark.parametrize("kind", ["group", "session"])
def test_fault_33_grandchild_that_ignores_sigterm_is_ended(
    script: Script, state_dir: Path, kind: str
) -> None:
    script(grandchild=kind, deaf=True)
    with server():
        assert len(marked_processes(str(state_dir))) >= 4
    assert marked_processes(str(state_dir)) == []


def test_fault_33_supervisor_killed_as_well(
    launch: Launch, script: Script, state_dir: Path
) -> None:
    script(grandchild="session", deaf=True)
    user = launch(START + "time.sleep(600)")
    first_line(user)
    state = state_of(state_dir)
    # Every process there was, so that one that has escaped from all marks is seen too.
    everything = marked_processes(str(state_dir))
    time.sleep(2.5)  # the record of descendants is renewed every two seconds
    os.kill(state.supervisor.pid, signal.SIGKILL)
    user.kill()
    user.wait()
    wait_for(lambda: not any(p.is_running() for p in everything))


def test_supervisor_and_reaper_killed_the_next_user_cleans_up(
    launch: Launch, script: Script, state_dir: Path, tmp_path: Path
) -> None:
    record = script(only=str(tmp_path / "only.lock"), deaf=True, grandchild="group")
    user = launch(START + "time.sleep(600)")
    first_line(user)
    state = state_of(state_dir)
    reapers = psutil.Process(state.supervisor.pid).children()
    for process in reapers:
        if state.family.leader is None or process.pid != state.family.leader.pid:
            process.kill()
    os.kill(state.supervisor.pid, signal.SIGKILL)
    user.kill()
    user.wait()
    # It is deaf to the death signal, so it lives, until somebody comes.
    with server() as running:
        assert ask(running) == 200
        assert running.pid != (state.family.leader.pid if state.family.leader else 0)
    assert len(starts(record)) == 2


def test_killed_reaper_is_replaced(script: Script, state_dir: Path) -> None:
    script()
    with server() as running:
        supervisor = psutil.Process(state_of(state_dir).supervisor.pid)
        (reaper,) = [child for child in supervisor.children() if child.pid != running.pid]
        reaper.kill()
        wait_for(
            lambda: [c for c in supervisor.children() if c.pid not in {running.pid, reaper.pid}]
        )
        assert ask(running) == 200


def test_fault_33_ctrl_c_during_start(launch: Launch, script: Script, state_dir: Path) -> None:
    script(no_listen=True)
    user = launch(START)
    wait_for(lambda: engine_processes(state_dir))
    user.send_signal(signal.SIGINT)
    user.wait(30)
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_fault_33_stop_during_start(script: Script, state_dir: Path) -> None:
    script(no_listen=True)
    one = server()
    errors: list[BaseException] = []

    def start() -> None:
        try:
            one.start()
        except ServerError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    wait_for(lambda: engine_processes(state_dir))
    one.stop()
    thread.join(30)
    assert len(errors) == 1
    wait_for(lambda: not marked_processes(str(state_dir)))


# --- faults of the start ---------------------------------------------------------------


def test_fault_30_child_that_exits_is_told_at_once(script: Script) -> None:
    script(lines=["one", "two", "RuntimeError: three"], exit=1)
    with pytest.raises(ServerStartError) as caught:
        server().start()
    assert caught.value.exit_code == 1
    assert "RuntimeError: three" in caught.value.log_tail
    assert "RuntimeError: three" in str(caught.value)


def test_fault_30_child_that_exits_with_zero(script: Script) -> None:
    script(exit=0)
    with pytest.raises(ServerStartError) as caught:
        server().start()
    assert caught.value.exit_code == 0


def test_fault_30_child_killed_by_a_signal(script: Script, state_dir: Path) -> None:
    script(no_listen=True)
    errors: list[ServerStartError] = []

    def start() -> None:
        try:
            server().start()
        except ServerStartError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    (engine,) = wait_for(lambda: engine_processes(state_dir))
    engine.kill()
    thread.join(30)
    assert errors[0].exit_code == -9
    assert "memory" in errors[0].hint


def test_fault_30_no_vllm_anywhere(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DEEPSEEK_OCR_VLLM", raising=False)
    with pytest.raises(ServerStartError, match="pip install vllm"):
        server().start()
    monkeypatch.setenv("DEEPSEEK_OCR_VLLM", str(tmp_path / "gone"))
    with pytest.raises(ServerStartError, match="DEEPSEEK_OCR_VLLM"):
        server().start()


def test_fault_30_a_failed_start_may_be_tried_again(script: Script) -> None:
    script(exit=1)
    one = server()
    with pytest.raises(ServerStartError):
        one.start()
    script()
    with one:
        assert ask(one) == 200


def test_fault_31_slow_sick_empty_then_ready(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="deepseek_ocr_loaders")
    script(lines=["Loading safetensors checkpoint shards:  50% Completed"], delay=1.5,
           not_ready=1, empty=1)  # fmt: skip
    with server() as running:
        assert ask(running) == 200
    assert "loading the weights (50 %)" in caplog.text
    assert "is ready after" in caplog.text


def test_fault_31_id_in_another_case_is_used_as_the_server_spells_it(script: Script) -> None:
    script(model_id="DeepSeek-AI/deepseek-ocr")
    with server() as running:
        assert running.model == "DeepSeek-AI/deepseek-ocr"


def test_fault_31_another_model_is_not_taken(script: Script) -> None:
    script(model_id="someone/else")
    with pytest.raises(ServerStartError, match="serves someone/else and not deepseek-ai"):
        server().start()


def test_fault_31_time_is_up_while_it_lives(script: Script, state_dir: Path) -> None:
    script(lines=["Starting to load model"], no_listen=True)
    with pytest.raises(ServerStartError, match=r"not ready within 2 s.*loading the weights"):
        server(start_timeout=2).start()
    wait_for(lambda: not marked_processes(str(state_dir)))


@pytest.mark.parametrize("listening", [True, False])
def test_fault_29_fixed_port_of_another_program(
    script: Script, state_dir: Path, listening: bool
) -> None:
    record = script()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listening:
            other.listen()
        with pytest.raises(PortTakenError, match="in use by another program"):
            server(port=other.getsockname()[1]).start()
    assert starts(record) == []


class Foreign(BaseHTTPRequestHandler):
    """Healthy, and serves what was asked for, with any key."""

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "deepseek-ai/DeepSeek-OCR"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_fault_29_foreign_server_that_won_the_race_is_not_adopted(
    script: Script, state_dir: Path
) -> None:
    # The engine opens its port late: meanwhile another program takes it.
    record = script(delay=4)
    adopted: list[DeepSeekOCRServer] = []
    one = server()
    thread = threading.Thread(target=lambda: adopted.append(one.start()))
    thread.start()
    first = wait_for(lambda: starts(record))[0]["argv"]
    port = int(first[first.index("--port") + 1])
    other = ThreadingHTTPServer(("127.0.0.1", port), Foreign)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    thread.join(60)
    other.shutdown()
    other.server_close()
    assert adopted == [one]
    assert one.endpoint.base_url != f"http://127.0.0.1:{port}/v1"
    assert len(starts(record)) == 2
    assert ask(one) == 200
    one.stop()


def test_fault_29_port_in_time_wait_is_free(script: Script) -> None:
    script()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    for _ in range(2):
        with server(port=port) as running:
            # A kept-alive connection that the server closes leaves its port in TIME_WAIT.
            assert ask(running) == 200
            assert running.base_url == f"http://127.0.0.1:{port}/v1"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found 12040).", "driver"),
        ("ImportError: libcudart.so.13: cannot open shared object file", "runtime library"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "memory ran out"),
        (
            "ValueError: Free memory on device (3.1/80 GiB) is less than desired GPU utilization",
            "already full",
        ),
        ("RuntimeError: unable to open shared memory object </torch_1> (/dev/shm)", "/dev/shm"),
        ("RuntimeError: CUDA error: no kernel image is available for execution", "generation"),
        ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set", "suspended"),
        ("OSError: You are trying to access a gated repo.", "gated"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("vllm: error: unrecognized arguments: --disable-log-requests", "argument"),
    ],
)
def test_fault_38_plain_cause_and_raw_tail(script: Script, line: str, cause: str) -> None:
    script(lines=["INFO something else", line, "INFO the end"], exit=1)
    with pytest.raises(ServerStartError) as caught:
        server().start()
    assert cause in caught.value.hint
    assert caught.value.hint in str(caught.value)
    assert line in caught.value.log_tail
    assert line in str(caught.value)


def test_fault_38_small_shared_memory_is_warned_of(
    script: Script, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script()
    real = os.statvfs

    def small(path: str) -> os.statvfs_result:
        found = real(path)
        if path != "/dev/shm":
            return found
        values = list(found)
        values[0] = values[1] = 4096
        values[2] = 64 * 1024 * 1024 // 4096
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", small)
    with server():
        pass
    assert "/dev/shm has 64 MB" in caplog.text


# --- the engine dies -------------------------------------------------------------------


async def test_fault_32_dead_engine_is_restarted_and_found_again(
    script: Script, tmp_path: Path, state_dir: Path
) -> None:
    record = script(die_once=str(tmp_path / "die"))
    async with server() as running:
        before = running.endpoint
        (tmp_path / "die").touch()
        after = await running.recover(before)
        assert after is not None
        assert after.generation == before.generation + 1
        assert running.endpoint == after
        assert ask(running) == 200
        # Late news of the old process does not blame the new one.
        assert await running.recover(before) == after
        assert await running.recover(after) is None
    assert len(starts(record)) == 2


async def test_fault_32_503_after_ready_means_dead(script: Script, tmp_path: Path) -> None:
    sick = tmp_path / "sick"
    record = script(sick=str(sick))
    async with server() as running:
        before = running.endpoint
        sick.touch()
        waiting = asyncio.create_task(running.recover(before))
        await asyncio.to_thread(wait_for, lambda: len(starts(record)) == 2)
        sick.unlink()
        after = await waiting
        assert after is not None
        assert after.generation > before.generation


async def test_fault_32_restarts_are_bounded(
    script: Script, tmp_path: Path, state_dir: Path
) -> None:
    record = script(die=str(tmp_path / "die"))
    async with server() as running:
        (tmp_path / "die").touch()
        with pytest.raises(ServerDiedError, match="illegal memory access") as caught:
            await running.recover(running.endpoint)
        assert "died 6 times" in str(caught.value)
    assert len(starts(record)) == 6
    assert marked_processes(str(state_dir)) == []


async def test_killed_supervisor_is_replaced_while_a_run_goes_on(
    script: Script, state_dir: Path
) -> None:
    record = script()
    async with server() as running:
        before = running.endpoint
        os.kill(state_of(state_dir).supervisor.pid, signal.SIGKILL)
        after = await running.recover(before)
        assert after is not None
        assert after.generation > before.generation
        assert ask(running) == 200
    assert len(starts(record)) == 2


# --- other processes -------------------------------------------------------------------


def test_fault_48_pickled_server_attaches_and_never_starts(script: Script, state_dir: Path) -> None:
    record = script()
    one = server()
    unstarted = pickle.loads(pickle.dumps(one))
    with pytest.raises(ServerUnreachableError, match="not running"):
        unstarted.start()
    assert starts(record) == []
    with one:
        assert one.api_key is not None
        frozen = pickle.dumps(one)
        assert one.api_key.get_secret_value().encode() not in frozen
        code = (
            "import pickle, sys\n"
            f"copy = pickle.loads({frozen!r})\n"
            "print(copy.start().base_url)\n"
            "copy.stop()\n"
        )
        output = subprocess.run(program(code), capture_output=True, text=True, check=True).stdout
        assert output.strip() == one.base_url
        assert ask(one) == 200
    late = pickle.loads(frozen)
    with pytest.raises(ServerUnreachableError):
        late.start()
    assert len(starts(record)) == 1


FORK = """
import os, sys, time
from deepseek_ocr_loaders import DeepSeekOCRServer
server = DeepSeekOCRServer(engine="vllm").start()
reading, writing = os.pipe()
pid = os.fork()
if pid == 0:
    {child}
    os.write(writing, b"x")
    time.sleep({child_lives})
    os._exit(0)
os.read(reading, 1)
{parent}
print("ok", flush=True)
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_child_that_stops_does_not_take_the_parents_server(script: Script) -> None:
    record = script()
    code = FORK.format(
        child="server.stop(); server.start(); server.stop()",
        child_lives=0,
        parent="""
import urllib.request
time.sleep(4)
request = urllib.request.Request(server.base_url + "/models")
request.add_header("Authorization", "Bearer " + server.api_key.get_secret_value())
assert urllib.request.urlopen(request).status == 200
server.stop()
""",
    )
    output = subprocess.run(program(code), capture_output=True, text=True, timeout=60, check=False)
    assert output.stdout == "ok\n", output.stderr
    assert len(starts(record)) == 1


def test_fork_child_does_not_hold_the_killed_parents_lease(
    launch: Launch, script: Script, state_dir: Path
) -> None:
    script()
    code = FORK.format(child="pass", child_lives=60, parent="")
    user = launch(code + "\ntime.sleep(600)")
    assert first_line(user) == "ok\n"
    (child,) = [
        process
        for process in psutil.Process(user.pid).children()
        if "os.fork()" in " ".join(process.cmdline())
    ]
    user.kill()
    user.wait()
    wait_for(lambda: not engine_processes(state_dir))
    assert child.is_running()
    child.kill()


def test_leases_show_who_uses_the_server(script: Script, state_dir: Path) -> None:
    script()
    with server():
        folder = folder_in(state_dir)
        assert scan(folder, tidy=False).pids == (os.getpid(),)
        # Looking at the leases from this very process must not lose its own.
        code = (
            "import sys\nfrom pathlib import Path\n"
            "from deepseek_ocr_loaders.server.state import ServerFolder\n"
            "from deepseek_ocr_loaders.server.lease import scan\n"
            f"print(scan(ServerFolder(Path({str(folder.path)!r})), tidy=False).pids)\n"
        )
        seen = subprocess.run(program(code), capture_output=True, text=True, check=True).stdout
        assert seen.strip() == f"({os.getpid()},)"


# --- the surroundings ------------------------------------------------------------------


def test_fault_37_leaked_variables_do_not_reach_the_engine(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = script()
    for name, value in {
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "VLLM_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "VLLM_SERVICE_HOST": "10.0.0.1",
        "VLLM_HOST_IP": "10.0.0.1",
        "VLLM_API_KEY": "the user's",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "NO_PROXY": "localhost",
        "RANK": "3",
    }.items():
        monkeypatch.setenv(name, value)
    with server(offline=True, env={"VLLM_LOGGING_LEVEL": "DEBUG"}) as running:
        assert ask(running) == 200
    seen = starts(record)[0]["env"]
    assert not [
        name for name in seen if name.startswith(("VLLM_PORT", "VLLM_SERVICE", "VLLM_HOST"))
    ]
    assert "HTTP_PROXY" not in seen
    assert "http_proxy" not in seen
    assert "RANK" not in seen
    assert seen["VLLM_API_KEY"] != "the user's"
    assert seen["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert seen["HF_HUB_OFFLINE"] == "1"


def test_fault_40_stdout_without_a_file_number(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script()

    class Cell:
        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stdout", Cell())
    monkeypatch.setattr(sys, "stderr", Cell())
    with server() as running:
        assert ask(running) == 200


async def test_fault_40_start_inside_a_running_loop(script: Script) -> None:
    script()
    with server() as running:
        assert ask(running) == 200


def test_fault_40_windows_is_refused_in_words(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script()
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ServerError, match="base_url"):
        server().start()


def test_the_users_process_imports_neither_torch_nor_vllm(script: Script) -> None:
    script()
    code = START + (
        "server.stop()\n"
        "bad = {'torch', 'vllm', 'transformers', 'rapidocr', 'onnxruntime'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run(program(code), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
