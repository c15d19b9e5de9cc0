"""A run against a real vLLM whose worker is killed under it."""

from __future__ import annotations

import threading
import urllib.request
from typing import TYPE_CHECKING

import pytest
from support import vllm
from support.servers import launch, state_dir, wait_for
from support.vllm import real_vllm

from deepseek_ocr_loaders import DeepSeekOCRLoader

if TYPE_CHECKING:
    from pathlib import Path

    from langchain_core.documents import Document

__all__ = ["launch", "real_vllm", "state_dir"]

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("real_vllm"),
]

PAGES = 20


def test_every_page_comes_back_when_the_worker_is_killed(tmp_path: Path, state_dir: Path) -> None:
    path = vllm.small_pdf(tmp_path / "pages.pdf", PAGES)
    server = vllm.make_server()
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
        vllm.worker(state_dir).kill()
        run.join(1500)
        assert not run.is_alive()
    assert [document.metadata["page"] for document in read] == list(range(PAGES))
    assert not {document.metadata["ocr_status"] for document in read} & {"failed", "blank"}
    assert loader.report is not None
    assert loader.report.retries >= 2
