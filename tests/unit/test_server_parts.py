from __future__ import annotations

# ruff: noqa: E501, ISC004 - lines of a log are quoted as they are
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepseek_ocr_loaders.engines.base import ServerOptions
from deepseek_ocr_loaders.errors import ServerError
from deepseek_ocr_loaders.server import diagnose, files, locks
from deepseek_ocr_loaders.server.log import EngineLog, read_tail
from deepseek_ocr_loaders.server.processes import Family, ProcessId, boot, end, identify, members
from deepseek_ocr_loaders.server.stages import stage_of
from deepseek_ocr_loaders.server.state import ServerFolder, options_from_json, options_to_json

CAUSES = {
    "runtime library": [
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "OSError: libcublas.so.13: cannot open shared object file",
        "ImportError: libcudnn.so.9: cannot open shared object file: No such file",
        "ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory",
    ],
    "driver is too old": [
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please",
        "CUDA driver version is insufficient for CUDA runtime version",
        "Error 803: system has unsupported display driver / cuda driver combination",
        "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        "Error 804: forward compatibility was attempted on non supported HW",
    ],
    "generation": [
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current "
        "PyTorch installation.",
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
    ],
    "already full": [
        "ValueError: Free memory on device (2.77/23.53 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 21.18 GiB).",
        "AssertionError: Error in memory profiling. Initial free memory 20 GiB, current 30 GiB.",
    ],
    "share of GPU memory": [
        "ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utiliz",
        "ValueError: To serve at least one request with the models's max seq len (8192), (1.5 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (0.3 GiB).",
    ],
    "memory ran out": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.2 GiB.",
        "torch.cuda.OutOfMemoryError: out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ],
    "/dev/shm": [
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1234'",
        "RuntimeError: unable to write to file </torch_61_38> shared memory: No space left",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
        "shared memory (shm).",
        "Bus error (core dumped)",
    ],
    "suspended": [
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
        "CUDA error 999: unknown error",
        "modprobe: ERROR: nvidia_uvm is busy",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    ],
    "No NVIDIA GPU is visible": [
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "RuntimeError: Failed to infer device type",
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
    ],
    "gated": [
        "OSError: You are trying to access a gated repo. Make sure to have access to it",
        "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url",
    ],
    "disk is full": ["OSError: [Errno 28] No space left on device", "Disk quota exceeded"],
    "was not found": [
        "RepositoryNotFoundError: 404 Client Error.",
        "OSError: deepseek/x is not a local folder and is not a valid model identifier listed on",
        "LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
    ],
    "port is in use": ["OSError: [Errno 98] Address already in use", "port is already allocated"],
    "8192": ["ValueError: User-specified max_model_len (32768) is greater than the derived max"],
    "n-gram": [
        "ValueError: <class 'NGramPerReqLogitsProcessor'> is not a subclass of vllm.v1.worker.gpu."
        "sample.logits_processor.LogitsProcessor"
    ],
    "argument": [
        "vllm: error: unrecognized arguments: --disable-log-requests",
        "vllm serve: error: argument --max-num-seqs: expected one argument",
    ],
    "architecture": [
        "ValueError: Model architectures ['DeepseekOCRForCausalLM'] are not supported for now."
    ],
    "Docker cannot be reached": ["Cannot connect to the Docker daemon at unix:///var/run/docker"],
}


@pytest.mark.parametrize(
    ("cause", "line"), [(cause, line) for cause, lines in CAUSES.items() for line in lines]
)
def test_fault_38_causes_are_told_apart(cause: str, line: str) -> None:
    log = f"INFO starting\n{line}\nTraceback (most recent call last):\n  File x, in y\nRuntimeError"
    assert cause in diagnose.explain(log, 1)


def test_fault_38_a_healthy_start_that_fails_otherwise_has_no_cause() -> None:
    log = (
        "INFO non-default args: {'gpu_memory_utilization': 0.9, 'disable_log_stats': False}\n"
        "WARNING ulimit: This can cause fd limit errors like `OSError: [Errno 24] Too many`\n"
        "INFO Available KV cache memory: 40.1 GiB\n"
        "INFO Maximum concurrency for 8,192 tokens per request: 12.80x\n"
        "KeyError: 'something nobody has seen'"
    )
    assert diagnose.explain(log, 1) == ""
    assert "signal 9" in diagnose.explain(log, -9)


def test_fault_38_the_error_is_preferred_to_a_warning_before_it() -> None:
    log = "WARNING /dev/shm may be small\nERROR torch.OutOfMemoryError: CUDA out of memory"
    assert "memory ran out" in diagnose.explain(log)


@pytest.mark.parametrize(
    ("size", "warned"), [(64 * 2**20, True), (2**30, False), (8 * 2**30, False)]
)
def test_fault_38_shared_memory(monkeypatch: pytest.MonkeyPatch, size: int, warned: bool) -> None:
    found = SimpleNamespace(f_blocks=size // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    assert bool(diagnose.shared_memory_warning()) is warned


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2", "loading the weights (50 %)"),
        ("(Worker pid=1) INFO 11-30 [x.py:68] Starting to load model /m...", "loading the weights"),
        ("model-00001.safetensors:  12%|#     | 800M/6.6G", "downloading the model (12 %)"),
        ("Fetching 12 files:   8%|8         | 1/12", "downloading the model (8 %)"),
        ("INFO [backends.py] Dynamo bytecode transform time: 4.35 s", "compiling the model"),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  60%|", "recording CUDA graphs (60 %)"),
        ("DeepGEMM warmup:  20%|", "compiling kernels (20 %)"),
        ("INFO Available KV cache memory: 100 GiB", "measuring the memory"),
        (
            "INFO Initializing a V1 LLM engine (v0.32.0) with config: inductor, downloading",
            "loading the engine",
        ),
        ("INFO:     Application startup complete.", "opening the address"),
        ("Unable to find image 'vllm/vllm-openai:v0.26.0' locally", "fetching the container image"),
        ("WARNING Enforce eager set, disabling torch.compile", None),
        ("INFO something else", None),
    ],
)  # fmt: skip
def test_fault_31_stage_is_read_from_the_log(line: str, stage: str | None) -> None:
    assert stage_of(line) == stage


def test_log_is_bounded_and_without_secrets(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log", ["s3cret-key", ""], limit=2000)
    for number in range(300):
        log.feed(f"line {number} with s3cret-key\r".encode())
    log.feed(b"\x1b[32mgreen\x1b[0m \xff end")
    log.feed(b" of it")
    assert log.tail.endswith("green \ufffd end of it")
    log.close()
    text = (tmp_path / "log.1").read_text() + (tmp_path / "log").read_text()
    assert "s3cret" not in text
    assert "line 299 with ***" in text
    assert (tmp_path / "log").stat().st_size <= 2000
    assert (tmp_path / "log.1").stat().st_size <= 2000
    assert read_tail(tmp_path / "log").endswith("end of it\n")
    assert read_tail(tmp_path / "gone") == ""


def test_our_own_questions_do_not_push_the_cause_out_of_the_log(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log")
    log.feed(b"RuntimeError: the cause\n")
    for _ in range(500):
        log.feed(b'INFO:     127.0.0.1:54276 - "GET /health HTTP/1.1" 200 OK\n')
    log.feed(b'INFO:     127.0.0.1:54276 - "GET /health HTTP/1.1" 503 Service Unavailable\n')
    assert log.tail.startswith("RuntimeError: the cause")
    assert "503" in log.tail
    log.close()


def test_log_line_without_an_end_is_bounded(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log", limit=100_000)
    for _ in range(100):
        log.feed(b"x" * 10_000)
    assert len(log._rest) < 30_000
    log.close()


def test_lock_excludes_threads_of_one_process(tmp_path: Path) -> None:
    inside: list[int] = []
    most = 0

    def work() -> None:
        nonlocal most
        with locks.exclusive(tmp_path / "lock", timeout=10):
            inside.append(1)
            most = max(most, len(inside))
            threading.Event().wait(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_lock_gives_up_in_time_and_when_cancelled(tmp_path: Path) -> None:
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.exclusive(tmp_path / "lock", timeout=1):
            ready.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait(5)
    with pytest.raises(locks.LockTimeoutError), locks.exclusive(tmp_path / "lock", timeout=0.1):
        pass
    with (
        pytest.raises(locks.LockTimeoutError),
        locks.exclusive(tmp_path / "lock", timeout=60, cancelled=lambda: True),
    ):
        pass
    done.set()
    thread.join()


def test_private_folder_refuses_links_and_closes_open_ones(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ServerError, match="link"):
        files.private_folder(tmp_path / "link")
    (tmp_path / "open").mkdir(mode=0o755)
    files.private_folder(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(ServerError):
        files.private_folder(tmp_path / "file")


def test_json_is_private_whole_and_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})
    assert path.stat().st_mode & 0o777 == 0o600
    assert files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    (tmp_path / "victim").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "victim")
    assert files.read_json(tmp_path / "link.json") is None
    files.write_json(tmp_path / "link.json", {"b": 2})
    assert (tmp_path / "victim").read_text() == "{}"
    path.write_text("[1, 2")
    assert files.read_json(path) is None


def test_process_record_does_not_fit_a_later_process_of_the_same_id() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert me.alive()
    assert not ProcessId(me.pid, "1").alive()
    assert not ProcessId(2**22 + 1, me.started).alive()
    family = Family(boot=boot(), leader=ProcessId(os.getppid(), "1"))
    assert members(family) == []
    assert end(family) == []


def test_record_of_an_earlier_boot_names_nobody() -> None:
    parent = identify(os.getppid())
    assert members(Family(boot="another", leader=parent, others=(parent,) if parent else ())) == []


def test_options_survive_json_and_decide_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPSEEK_OCR_STATE_DIR", str(tmp_path / "state"))
    one: dict[str, Any] = {
        "engine": "docker", "model": "m", "port": 1, "extra_args": ("--a", "b"),
        "env": (("X", "y"),), "image_tar": Path("/x.tar"), "offline": True,
    }  # fmt: skip
    options = ServerOptions(**one)
    assert options_from_json(json.loads(json.dumps(options_to_json(options)))) == options
    folder = ServerFolder.of(options)
    assert folder == ServerFolder.of(ServerOptions(**one))
    assert folder != ServerFolder.of(ServerOptions(**{**one, "port": 2}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert folder != ServerFolder.of(options)
