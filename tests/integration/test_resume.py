"""A run that is killed and started again: nothing is read twice, and nothing is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from support.fault_server import FaultServer, marked_pdf, markers_in
from support.servers import wait_for

from deepseek_ocr_loaders import DeepSeekOCRLoader

if TYPE_CHECKING:
    from pathlib import Path

PAGES = 500
AT_ONCE = 8

PROGRAM = f"""
import sys
from deepseek_ocr_loaders import DeepSeekOCRLoader
path, base_url, cache = sys.argv[1:]
for document in DeepSeekOCRLoader(
    path, base_url=base_url, cache=cache, max_concurrency={AT_ONCE}
).lazy_load():
    pass
"""


def test_a_run_of_500_pages_that_was_killed_sends_only_the_missing_ones(tmp_path: Path) -> None:
    path, cache = tmp_path / "pages.pdf", tmp_path / "cache"
    path.write_bytes(marked_pdf(range(PAGES)))
    with FaultServer(seconds=0.05) as server:
        command = [sys.executable, "-c", PROGRAM, str(path), server.base_url, str(cache)]
        with subprocess.Popen(command) as run:
            wait_for(lambda: sum(r.outcome == "replied" for r in server.requests) >= PAGES // 2)
            run.kill()
        assert server.wait_idle()
        answered = sum(request.outcome == "replied" for request in server.requests)
        assert answered < PAGES
        kept = len([*cache.rglob("*.page")])
        assert answered - AT_ONCE <= kept <= answered
        before = len(server.requests)
        loader = DeepSeekOCRLoader(path, base_url=server.base_url, cache=cache)
        documents = loader.load()
        assert len(server.requests) - before == PAGES - kept
    read = [marker for document in documents for marker in markers_in(document.page_content)]
    assert read == list(range(PAGES))
    assert loader.report is not None
    assert loader.report.cached == kept
