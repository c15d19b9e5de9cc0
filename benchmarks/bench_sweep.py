#!/usr/bin/env python3
"""How fast vLLM itself is under different settings, so that the managed server can be tuned.

    benchmarks/bench_sweep.py --model FOLDER --dummy                 # all settings
    benchmarks/bench_sweep.py --model FOLDER --dummy --only graphs,omp

Up to `--together` servers start at the same time, each with a fixed share of memory, and are
measured one after the other, so that the minutes of their starts are paid once.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import bare_client
from gpu_watch import GpuWatch
from pages import draw, make_pdf
from plain_vllm import OFFICIAL, PlainVllm
from table import Table, percentile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepseek_ocr_loaders.page import Picture

CORES = len(os.sched_getaffinity(0))
WORKERS = ("--renderer-num-workers", str(max(1, min(12, CORES * 3 // 4))))
GRAPHS = ("--compilation-config", '{"cudagraph_mm_encoder":true}')
PAGE_GRAPHS = (
    "--compilation-config",
    '{"cudagraph_mm_encoder":true,"encoder_cudagraph_token_budgets":[600]}',
)
NO_PROCESSOR = OFFICIAL[2:]


@dataclass(frozen=True)
class Setting:
    """One way to start vLLM, and how it is asked.

    Attributes:
        arguments: Of `vllm serve`.
        env: Variables.
        copies: Servers side by side on the GPU, asked in turn.
        ngram: Each request asks for the n-gram processor.
        at_once: Requests at once.
    """

    arguments: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    copies: int = 1
    ngram: bool = False
    at_once: int = 256


ONE_THREAD = {"OMP_NUM_THREADS": "1"}
NO_SAMPLER = {**ONE_THREAD, "VLLM_USE_FLASHINFER_SAMPLER": "0"}
SETTINGS = {
    "recipe": Setting(OFFICIAL, ngram=True, at_once=128),
    "workers": Setting((*OFFICIAL, *WORKERS)),
    "graphs": Setting((*OFFICIAL, *WORKERS, *GRAPHS)),
    "graphs-ngram": Setting((*OFFICIAL, *WORKERS, *GRAPHS), ngram=True),
    "omp": Setting((*OFFICIAL, *WORKERS, *GRAPHS), env=ONE_THREAD),
    "no-processor": Setting((*NO_PROCESSOR, *WORKERS, *GRAPHS), env=ONE_THREAD),
    "two-copies": Setting(
        (*OFFICIAL, "--renderer-num-workers", "6", *GRAPHS), env=ONE_THREAD, copies=2
    ),
    "page-graphs": Setting((*OFFICIAL, *WORKERS, *PAGE_GRAPHS), env=NO_SAMPLER),
    "two-page-graphs": Setting(
        (*OFFICIAL, "--renderer-num-workers", "6", *PAGE_GRAPHS),
        env=NO_SAMPLER,
        copies=2,
        at_once=384,
    ),
    "shm": Setting((*OFFICIAL, *WORKERS, *GRAPHS, "--mm-tensor-ipc", "torch_shm"), env=ONE_THREAD),
    "batch-16k": Setting(
        (*OFFICIAL, *WORKERS, *GRAPHS, "--max-num-batched-tokens", "16384"), env=ONE_THREAD
    ),
    "batch-4k": Setting(
        (*OFFICIAL, *WORKERS, *GRAPHS, "--max-num-batched-tokens", "4096"), env=ONE_THREAD
    ),
    "api-servers": Setting((*OFFICIAL, *GRAPHS, "--api-server-count", "6"), env=ONE_THREAD),
    "seqs-512": Setting(
        (*OFFICIAL, *WORKERS, *GRAPHS, "--max-num-seqs", "512"), env=ONE_THREAD, at_once=512
    ),
}
COLUMNS = ("setting", "at once", "pages", "pages/s", "p50 s", "p99 s", "GPU busy %", "start s")


def batches(names: list[str], together: int) -> Iterator[list[str]]:
    """Give the names in groups that start at the same time."""
    rest = iter(names)
    while group := list(islice(rest, together)):
        yield group


def measure(
    setting: Setting, servers: list[PlainVllm], pictures: list[Picture], given: argparse.Namespace
) -> list[object]:
    """Give the cells of one row."""
    addresses = [server.base_url for server in servers]
    model = servers[0].model
    warm = bare_client.bodies(pictures, model, bare_client.fixed_length(32))
    bare_client.send(addresses, warm, pages=96, concurrency=48)
    fields = {**(bare_client.OFFICIAL if setting.ngram else {})}
    requests = bare_client.bodies(
        pictures, model, {**fields, **bare_client.fixed_length(given.tokens)}
    )
    pages = given.pages or 2 * setting.at_once
    with GpuWatch() as gpu:
        load = bare_client.send(addresses, requests, pages=pages, concurrency=setting.at_once)
    return [
        setting.at_once,
        pages,
        pages / load.seconds,
        percentile(load.latencies, 0.5),
        percentile(load.latencies, 0.99),
        gpu.busy,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="deepseek-ai/DeepSeek-OCR")
    parser.add_argument("--dummy", action="store_true", help="the folder has no weights")
    parser.add_argument("--only", default=",".join(SETTINGS), help="names, with commas between")
    parser.add_argument("--together", type=int, default=2, help="servers at the same time")
    parser.add_argument("--pages", type=int, default=0, help="default: twice those at once")
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--kv-gib", type=int, default=24, help="memory for the context, each")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no group after that")
    parser.add_argument("--logs", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    rows = {}
    with ExitStack() as stack:
        folder = given.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        pictures = draw(make_pdf(folder / "pages.pdf", 64), 64)
        table = Table(COLUMNS)
        for group in batches(given.only.split(","), given.together):
            if time.monotonic() - began > given.seconds:
                print(f"no time for {', '.join(group)}")
                continue
            with ExitStack() as running:
                started = {
                    name: [
                        running.enter_context(
                            PlainVllm(
                                given.model,
                                (
                                    *SETTINGS[name].arguments,
                                    *("--kv-cache-memory-bytes", str(given.kv_gib * 2**30)),
                                    *("--gpu-memory-utilization", "0.2"),
                                ),
                                log=folder / f"{name}-{copy}.log",
                                env=SETTINGS[name].env,
                                dummy=given.dummy,
                            )
                        )
                        for copy in range(SETTINGS[name].copies)
                    ]
                    for name in group
                }
                for name, servers in started.items():
                    try:
                        start = max(server.wait() for server in servers)
                    except RuntimeError as error:
                        print(f"{name}: {error}", flush=True)
                        continue
                    # The others have to be through with compiling before anything is measured.
                    for others in started.values():
                        for server in others:
                            try:
                                server.wait()
                            except RuntimeError:
                                continue
                    cells = measure(SETTINGS[name], servers, pictures, given)
                    rows[name] = [*cells, start]
                    table.row(name, *cells, start)
        if given.logs:
            (given.logs / "sweep.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
