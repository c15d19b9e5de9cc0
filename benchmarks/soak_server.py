"""Start, one page, stop, many times over: what is left behind, and does memory grow?

    python benchmarks/soak_server.py --cycles 200

Each cycle is `with DeepSeekOCRServer(...)` and one page through `DeepSeekOCRLoader`. Prints a
table; `--json` prints the numbers. The exit code is 1 where anything is left.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pymupdf

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRServer

WORD = "Harbour"


@dataclass
class Report:
    """What a soak showed; memory in MiB, times in seconds."""

    cycles: int
    start_median: float
    start_max: float
    page_median: float
    stop_median: float
    stop_max: float
    memory_warm: float
    memory_end: float
    files_warm: int
    files_end: int
    threads_warm: int
    threads_end: int
    processes_left: int
    leases_left: int
    ports_left: int
    state_kib: float


def write_page(path: Path) -> None:
    """Draw a small page with one word that must come back."""
    with pymupdf.open() as document:
        page = document.new_page(width=300, height=200)
        page.insert_text((30, 80), f"{WORD} lights", fontsize=24)
        document.save(path)


def processes(folder: str) -> list[psutil.Process]:
    """Give the processes that work in the state folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.pid != os.getpid() and process.cwd().startswith(folder):
                found.append(process)
    return found


def listening(ports: set[int]) -> int:
    """Count the ports of ended servers that somebody still listens on."""
    return sum(
        connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports
        for connection in psutil.net_connections("tcp")
    )


def soak(cycles: int, engine: str) -> Report:
    """Run the cycles and look at what they leave."""
    with tempfile.TemporaryDirectory() as name:
        state = str(Path(name).resolve() / "state")
        os.environ["DEEPSEEK_OCR_STATE_DIR"] = state
        pdf = Path(name) / "page.pdf"
        write_page(pdf)
        me = psutil.Process()
        starts, pages, stops = [], [], []
        ports: set[int] = set()
        warm = (0.0, 0, 0)
        for cycle in range(cycles):
            began = time.perf_counter()
            with DeepSeekOCRServer(engine=engine) as server:
                starts.append(time.perf_counter() - began)
                ports.add(int(server.base_url.rsplit(":", 1)[1].partition("/")[0]))
                began = time.perf_counter()
                (document,) = DeepSeekOCRLoader(pdf, server=server).load()
                pages.append(time.perf_counter() - began)
                if engine == "rapidocr":
                    assert WORD in document.page_content, document.page_content
                began = time.perf_counter()
            stops.append(time.perf_counter() - began)
            left = processes(state)
            assert not left, f"cycle {cycle}: {left}"
            if cycle == max(1, cycles // 10):
                warm = measure(me)
            if cycle % 20 == 0:
                print(f"cycle {cycle}: {measure(me)}", file=sys.stderr, flush=True)
        end = measure(me)
        files = [path for path in Path(state).rglob("*") if path.is_file()]
        return Report(
            cycles=cycles,
            start_median=statistics.median(starts),
            start_max=max(starts),
            page_median=statistics.median(pages),
            stop_median=statistics.median(stops),
            stop_max=max(stops),
            memory_warm=warm[0],
            memory_end=end[0],
            files_warm=warm[1],
            files_end=end[1],
            threads_warm=warm[2],
            threads_end=end[2],
            processes_left=len(processes(state)),
            leases_left=sum(path.parent.name == "leases" for path in files),
            ports_left=listening(ports),
            state_kib=sum(path.stat().st_size for path in files) / 1024,
        )


def measure(me: psutil.Process) -> tuple[float, int, int]:
    """Give memory (MiB), open files and threads of this process."""
    gc.collect()
    return round(me.memory_info().rss / 2**20, 1), me.num_fds(), threading.active_count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--engine", default="rapidocr")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    report = soak(given.cycles, given.engine)
    if given.json:
        print(json.dumps(asdict(report)))
    else:
        for name, value in asdict(report).items():
            print(f"| {name.replace('_', ' ')} | {value:.2f} |" if isinstance(value, float)
                  else f"| {name.replace('_', ' ')} | {value} |")  # fmt: skip
    left = report.processes_left + report.leases_left + report.ports_left
    sys.exit(1 if left else 0)


if __name__ == "__main__":
    main()
