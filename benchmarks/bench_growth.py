#!/usr/bin/env python3
"""How time and memory grow with pages and documents, against a server that answers at once.

    benchmarks/bench_growth.py                   # about five minutes on two cores
    benchmarks/bench_growth.py --largest 1000    # the quick one

Each row is a process of its own, so that its peak of memory is its own. "drawn" draws A4 text
pages; "ready" takes pages that were drawn beforehand, so that the rest of the path is measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from instant_server import InstantServer
from pages import draw, make_pdf
from table import Table

from deepseek_ocr_loaders import DeepSeekOCRLoader
from deepseek_ocr_loaders.source import OpenSource

COLUMNS = (
    *("pages", "documents", "of", "pages/s", "CPU ms/page", "first Document s", "peak MiB"),
    "grown MiB",
)
GROWTH_OF_PAGES = 100
"""Pages after which memory is looked at for the first time: everything is warm by then."""


def measure(kind: str, files: list[str], base_url: str) -> dict[str, float]:
    """Load the files in this process, and give what it took."""
    loader = DeepSeekOCRLoader(files, base_url=base_url, max_concurrency=64)
    patch: Any = mock.patch.object(OpenSource, "picture", OpenSource.picture)
    if kind == "ready":
        picture = draw(Path(files[0]), 1)[0]
        patch = mock.patch.object(OpenSource, "picture", return_value=picture)
    with patch:
        cpu, began = time.process_time(), time.perf_counter()
        first, warm = 0.0, 0.0
        pages = 0
        for pages, _document in enumerate(loader.lazy_load(), start=1):
            if pages == 1:
                first = time.perf_counter() - began
            if pages == GROWTH_OF_PAGES:
                warm = peak_mib()
        seconds = time.perf_counter() - began
    return {
        "pages_per_second": pages / seconds,
        "cpu_ms": 1000 * (time.process_time() - cpu) / pages,
        "first": first,
        "peak": peak_mib(),
        "grown": peak_mib() - warm if warm else 0.0,
    }


def peak_mib() -> float:
    """Give the most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def shapes(largest: int) -> list[tuple[int, int, str]]:
    """Give pages, documents and kind of each row."""
    lengths = [pages for pages in (10, 100, 1000, 10_000) if pages <= largest]
    rows = [(pages, 1, kind) for kind in ("ready", "drawn") for pages in lengths]
    return [*rows, (1000, 1000, "ready"), (1000, 1000, "drawn")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--largest", type=int, default=10_000, help="pages of the longest PDF")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        logging.getLogger("deepseek_ocr_loaders").setLevel(logging.ERROR)
        kind, list_of_files, base_url = given.worker
        print(json.dumps(measure(kind, json.loads(Path(list_of_files).read_text()), base_url)))
        return
    with tempfile.TemporaryDirectory() as temporary, InstantServer() as server:
        folder = Path(temporary)
        table = Table(COLUMNS)
        for pages, documents, kind in shapes(given.largest):
            files = []
            for number in range(documents):
                path = folder / f"{pages}-{documents}-{number}.pdf"
                if not path.exists():
                    make_pdf(path, pages // documents, seed=number)
                files.append(str(path))
            list_of_files = folder / "files.json"
            list_of_files.write_text(json.dumps(files))
            command = [sys.executable, __file__, "--worker", kind, list_of_files, server.base_url]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            table.row(pages, documents, kind, *json.loads(done.stdout).values())


if __name__ == "__main__":
    main()
