#!/usr/bin/env python3
"""What is left of the managed server when the user's program is killed: it must be nothing.

    benchmarks/bench_lifecycle.py --model FOLDER --dummy

A program starts the server and reads pages; it is killed with SIGKILL in the middle. The table
shows when the server's processes and the GPU's memory were gone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from gpu_watch import memory_used_mib
from pages import make_pdf
from plain_vllm import SERVED
from table import Table

PROGRAM = """
import logging, sys
from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRServer
from fixed_length import answers_of
logging.getLogger("deepseek_ocr_loaders").setLevel(logging.ERROR)
pdf, model, tokens, *extra = sys.argv[1:]
server = DeepSeekOCRServer(engine="vllm", model=model, extra_args=extra, offline=bool(extra))
server.start()
print("ready", server.pid, flush=True)
with answers_of(int(tokens)):
    for document in DeepSeekOCRLoader(pdf, server=server).lazy_load():
        print("page", document.metadata["page_number"], flush=True)
    print("read", flush=True)
    for document in DeepSeekOCRLoader(pdf, server=server).lazy_load():
        pass
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="deepseek-ai/DeepSeek-OCR")
    parser.add_argument("--dummy", action="store_true", help="the folder has no weights")
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--managed-args", default="", help="further arguments of the server")
    parser.add_argument("--seconds", type=float, default=60, help="how long to look afterwards")
    given = parser.parse_args()
    extra = given.managed_args.split()
    if given.dummy:
        extra += ["--load-format", "dummy", "--served-model-name", SERVED]
    before = memory_used_mib()
    table = Table(("what", "seconds", "GPU MiB"))
    table.row("before", 0.0, before)
    with tempfile.TemporaryDirectory() as folder:
        pdf = make_pdf(Path(folder) / "pages.pdf", given.pages)
        began = time.monotonic()
        user = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, pdf, given.model, str(given.tokens), *extra],
            cwd=Path(__file__).parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert user.stdout is not None
        word, _, pid = user.stdout.readline().partition(" ")
        assert word == "ready", "the server did not start"
        table.row("server ready", time.monotonic() - began, memory_used_mib())
        engine = psutil.Process(int(pid))
        family = [engine, *engine.children(recursive=True)]
        began = time.monotonic()
        lines = iter(user.stdout.readline, "read\n")
        pages = sum(1 for line in lines if line.startswith("page"))
        table.row(f"{pages} pages read", time.monotonic() - began, memory_used_mib())
        assert pages == given.pages
        user.kill()
        user.wait()
        killed = time.monotonic()
        gone: float | None = None
        free: float | None = None
        while time.monotonic() - killed < given.seconds and (gone is None or free is None):
            if gone is None and not any(map(_lives, family)):
                gone = time.monotonic() - killed
                table.row("SIGKILL of the program: server gone", gone, memory_used_mib())
            used = memory_used_mib()
            if free is None and (used is None or used <= (before or 0) + 16):
                free = time.monotonic() - killed
                table.row("SIGKILL of the program: GPU memory as before", free, used)
            time.sleep(0.2)
    if gone is None or free is None:
        left = [process for process in family if _lives(process)]
        sys.exit(f"NOT GONE after {given.seconds} s: {left}, {memory_used_mib()} MiB")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
