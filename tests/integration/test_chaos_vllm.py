"""A run against a real vLLM whose worker is killed under it."""

from __future__ import annotations

import os
import threading
import urllib.request
from typing import TYPE_CHECKING

import pymupdf
import pytest
from support.servers import engine_processes, launch, state_dir, wait_for

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRServer
from deepseek_ocr_loaders.server.control import stop_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from langchain_core.documents import Document

__all__ = ["launch", "state_dir"]

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(1800)]

PAGES = 8


@pytest.fixture(autouse=True)
def real_vllm(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DEEPSEEK_OCR_VLLM", os.environ["DEEPSEEK_OCR_TEST_VLLM"])
    yield
    stop_all()


def test_every_page_comes_back_when_the_worker_is_killed(tmp_path: Path, state_dir: Path) -> None:
    path = tmp_path / "pages.pdf"
    with pymupdf.open() as document:
        for number in range(PAGES):
            page = document.new_page(width=300, height=200)
            page.insert_text((30, 80), f"Page {number}", fontsize=24)
        document.save(path)
    server = DeepSeekOCRServer(
        engine="vllm",
        model=os.environ["DEEPSEEK_OCR_TEST_MODEL"],
        extra_args=["--load-format", "dummy", "--enforce-eager", "--max-num-seqs", "4"],
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    )
    read: list[Document] = []
    with server:
        loader = DeepSeekOCRLoader(path, server=server, detail="low", skip_blank=False)
        run = threading.Thread(target=lambda: read.extend(loader.load()))
        run.start()
        metrics = server.base_url.removesuffix("/v1") + "/metrics"

        def is_working() -> bool:
            with urllib.request.urlopen(metrics) as reply:
                lines = reply.read().decode().splitlines()
            running = [line for line in lines if line.startswith("vllm:num_requests_running")]
            return any(float(line.rsplit(" ", 1)[1]) >= 2 for line in running)

        wait_for(is_working)
        (engine,) = engine_processes(state_dir)
        worker = next(
            process
            for process in engine.children(recursive=True)
            if "Worker" in " ".join(process.cmdline())
        )
        worker.kill()
        run.join(1500)
        assert not run.is_alive()
    assert [document.metadata["page"] for document in read] == list(range(PAGES))
    assert not {document.metadata["ocr_status"] for document in read} & {"failed", "blank"}
    assert loader.report is not None
    assert loader.report.retries >= 2
