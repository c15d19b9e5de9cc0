"""A managed server with a real vLLM on the CPU: the real architecture, without weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pymupdf
import pytest

from deepseek_ocr_loaders import DeepSeekOCRServer, ladder
from deepseek_ocr_loaders.server.control import stop_all
from support.servers import engine_processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psutil

MAX_MODEL_LEN = 512
"""Noise does not end by itself: without a limit each answer would have 8,000 tokens."""

ARGUMENTS = [
    *("--load-format", "dummy", "--enforce-eager", "--max-num-seqs", "4"),
    *("--max-model-len", str(MAX_MODEL_LEN)),
    # Without AVX-512 bfloat16 is emulated, and one picture takes minutes.
    *("--dtype", "float32"),
]
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    # All cores work: by itself vLLM leaves one out.
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
    # The default of 300 s is not enough for a busy machine.
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1200",
}


def executable() -> str:
    """Give the `vllm` that the tests were told of."""
    return os.environ["DEEPSEEK_OCR_TEST_VLLM"]


def model() -> str:
    """Give the folder of the model without weights."""
    return os.environ["DEEPSEEK_OCR_TEST_MODEL"]


def make_server() -> DeepSeekOCRServer:
    """Give a server that has not started."""
    return DeepSeekOCRServer(engine="vllm", model=model(), extra_args=ARGUMENTS, env=VARIABLES)


def worker(state_dir: Path) -> psutil.Process:
    """Give the process that computes; it has the weights, and on a GPU its memory."""
    (engine,) = engine_processes(state_dir)
    family = engine.children(recursive=True)
    return next(process for process in family if "Worker" in " ".join(process.cmdline()))


def small_pdf(path: Path, pages: int = 1) -> Path:
    """Write pages that are small enough for the global view alone."""
    with pymupdf.open() as document:
        for number in range(pages):
            page = document.new_page(width=300, height=200)
            page.insert_text((30, 80), f"Harbour {number}", fontsize=24)
        document.save(path)
    return path


@pytest.fixture
def real_vllm(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have managed servers start the real one, ask each page once, and end them afterwards."""
    monkeypatch.setenv("DEEPSEEK_OCR_VLLM", executable())
    # Noise asks for all ways of the ladder, which `test_vllm_cpu.py` takes.
    monkeypatch.setattr(ladder, "methods", lambda *_: (ladder.PLAIN,))
    yield
    stop_all()
