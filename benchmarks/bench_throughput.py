#!/usr/bin/env python3
"""How fast pages are read: DeepSeek's recipe by hand against this package, on the same pages.

    benchmarks/bench_throughput.py                         # on a machine with a GPU and vLLM
    benchmarks/bench_throughput.py --dummy --model FOLDER  # a model folder without weights
    benchmarks/bench_throughput.py --base-url http://...   # cases c, d, e on a server that runs

Every answer has the same length (`ignore_eos`). The cases:

    a  DeepSeek's recipe, a loop that sends page after page
    b  DeepSeek's recipe, 128 at once from a bare asynchronous client
    c  this package's managed server, the same bare client
    d  this package's managed server, DeepSeekOCRLoader on a PDF
    e  this package's managed server, DeepSeekOCRReader on the same PDF
    f  Hugging Face Transformers against vLLM: bench_transformers.py, which see
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bare_client
from fixed_length import answers_of
from gpu_watch import GpuWatch
from pages import draw, make_pdf
from plain_vllm import OFFICIAL, SERVED, PlainVllm
from table import Table, percentile

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRReader, DeepSeekOCRServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deepseek_ocr_loaders.report import RunReport

NAMES = {
    "a": "(a) recipe, page after page",
    "b": "(b) recipe, bare client",
    "c": "(c) managed server, bare client",
    "d": "(d) managed server, DeepSeekOCRLoader",
    "e": "(e) managed server, DeepSeekOCRReader",
}
DISTINCT = 64
"""Different pages that the bare client sends in turn; nothing on the server remembers a page."""
COLUMNS = (
    *("case", "pages", "at once", "pages/s", "tokens/s", "p50 s", "p99 s", "start s"),
    *("client CPU ms/page", "GPU busy %"),
)


class Bench:
    """Measures one case after the other and prints its row."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments = arguments
        self.folder = folder
        self.pdf = make_pdf(folder / "pages.pdf", arguments.pages)
        self.pictures = draw(self.pdf, min(DISTINCT, arguments.pages))
        size = sum(len(picture.data) for picture in self.pictures) / len(self.pictures)
        first = self.pictures[0]
        print(f"{first.width} × {first.height} {first.media_type}, {size / 1000:.0f} kB a page\n")
        self.length = bare_client.fixed_length(arguments.tokens)
        self.results: dict[str, dict[str, Any]] = {}
        self.table = Table(COLUMNS)

    def bare(
        self,
        case: str,
        base_urls: Sequence[str],
        model: str,
        *,
        pages: int,
        at_once: int,
        start: float | None,
        fields: dict[str, Any],
        api_keys: Sequence[str] = (),
    ) -> None:
        """Measure the bare client."""
        requests = bare_client.bodies(self.pictures, model, {**fields, **self.length})
        with GpuWatch() as gpu:
            load = bare_client.send(
                base_urls, requests, pages=pages, concurrency=at_once, api_keys=api_keys
            )
        self.row(case, load, at_once=at_once, start=start, busy=gpu.busy)

    def loaded(
        self, case: str, reader: Any, load: Callable[[], Sequence[Any]], *, at_once: int
    ) -> None:
        """Measure a loader or reader on the PDF."""
        measured = bare_client.Load()
        with answers_of(self.arguments.tokens), GpuWatch() as gpu:
            cpu, started = time.process_time(), time.perf_counter()
            documents = load()
            measured.seconds = time.perf_counter() - started
            measured.cpu_seconds = time.process_time() - cpu
        report: RunReport = reader.report
        assert len(documents) == len(report.pages) == self.arguments.pages, report
        measured.latencies = [page.attempts[0].seconds for page in report.pages]
        measured.prompt_tokens = report.usage.prompt_tokens
        measured.completion_tokens = report.usage.completion_tokens
        self.row(case, measured, at_once=at_once, start=None, busy=gpu.busy)

    def row(
        self,
        case: str,
        load: bare_client.Load,
        *,
        at_once: int,
        start: float | None,
        busy: float | None,
    ) -> None:
        """Print a case's row and keep it for the ratios."""
        pages = len(load.latencies)
        expected = pages * self.arguments.tokens
        if load.completion_tokens != expected:
            print(f"WRONG LENGTH: {load.completion_tokens} tokens instead of {expected}")
        result = {
            "pages": pages,
            "at_once": at_once,
            "pages_per_second": pages / load.seconds,
            "tokens_per_second": load.completion_tokens / load.seconds,
            "p50": percentile(load.latencies, 0.5),
            "p99": percentile(load.latencies, 0.99),
            "start": start,
            "cpu_ms": 1000 * load.cpu_seconds / pages,
            "busy": busy,
        }
        self.results[case] = result
        self.table.row(NAMES[case], *result.values())

    def warm_up(self, base_urls: Sequence[str], model: str, api_keys: Sequence[str] = ()) -> None:
        """Let the server compile what it compiles with its first requests."""
        pages = self.arguments.warm_up
        if not pages:
            return
        fields = bare_client.fixed_length(32)
        requests = bare_client.bodies(self.pictures, model, fields)
        bare_client.send(base_urls, requests, pages=pages, concurrency=48, api_keys=api_keys)

    # --- the cases ----------------------------------------------------------------------------

    def by_the_recipe(self) -> None:
        """Measure cases a and b."""
        given = self.arguments
        arguments = [*OFFICIAL, *given.vllm_args.split()]
        log = self.folder / "recipe.log"
        with PlainVllm(given.model, arguments, log=log, dummy=given.dummy) as server:
            start = server.wait()
            self.warm_up([server.base_url], server.model)
            for case, pages, at_once in (("a", 6, 1), ("b", 384, 128)):
                if case in given.cases:
                    self.bare(
                        case,
                        [server.base_url],
                        server.model,
                        pages=min(pages, given.pages),
                        at_once=at_once,
                        start=start,
                        fields=bare_client.OFFICIAL,
                    )

    def by_the_package(self) -> None:
        """Measure cases c, d and e."""
        given = self.arguments
        options: dict[str, Any] = {"base_url": given.base_url, "api_key": given.api_key}
        if not given.base_url:
            extra = given.managed_args.split()
            if given.dummy:
                extra += ["--load-format", "dummy", "--served-model-name", SERVED]
            options = {
                "engine": "vllm",
                "model": given.model,
                "extra_args": extra,
                "offline": given.dummy,
            }
        began = time.monotonic()
        with DeepSeekOCRServer(**options) as server:
            start = None if given.base_url else time.monotonic() - began
            urls = [endpoint.base_url for endpoint in server.endpoints]
            keys = [
                one.api_key.get_secret_value() if one.api_key else "" for one in server.endpoints
            ]
            at_once = sum(endpoint.max_concurrency or 64 for endpoint in server.endpoints)
            self.warm_up(urls, server.model, keys)
            if "c" in given.cases:
                self.bare(
                    "c",
                    urls,
                    server.model,
                    pages=given.pages,
                    at_once=at_once,
                    start=start,
                    fields={},
                    api_keys=keys,
                )
            if "d" in given.cases:
                loader = DeepSeekOCRLoader(self.pdf, server=server)
                self.loaded("d", loader, loader.load, at_once=at_once)
            if "e" in given.cases:
                reader = DeepSeekOCRReader(server=server)
                self.loaded("e", reader, lambda: reader.load_data(self.pdf), at_once=at_once)

    def ratios(self) -> None:
        """Print what the cases are to each other."""
        print()
        for upper, lower in ("cb", "dc", "ec", "da"):
            if upper in self.results and lower in self.results:
                speeds = [self.results[case]["pages_per_second"] for case in (upper, lower)]
                print(f"({upper}) ÷ ({lower}) = {speeds[0] / speeds[1]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="deepseek-ai/DeepSeek-OCR", help="hub id or folder")
    parser.add_argument("--dummy", action="store_true", help="the folder has no weights")
    parser.add_argument("--base-url", help="a server that runs already; cases c, d, e")
    parser.add_argument("--api-key", help="its key")
    parser.add_argument("--cases", default="abcde", help="which; default abcde")
    parser.add_argument("--pages", type=int, default=768, help="pages of c, d and e")
    parser.add_argument("--tokens", type=int, default=800, help="length of each answer")
    parser.add_argument("--vllm-args", default="", help="further arguments in a and b")
    parser.add_argument("--managed-args", default="", help="further arguments in c, d and e")
    parser.add_argument("--warm-up", type=int, default=96, help="short pages before measuring")
    parser.add_argument("--logs", type=Path, help="folder for logs and results")
    arguments = parser.parse_args()
    # Answers of noise end as truncated: the loaders say so for each page.
    logging.getLogger("deepseek_ocr_loaders").setLevel(logging.ERROR)
    with ExitStack() as stack:
        if arguments.logs:
            arguments.logs.mkdir(parents=True, exist_ok=True)
        temporary = stack.enter_context(tempfile.TemporaryDirectory())
        bench = Bench(arguments, arguments.logs or Path(temporary))
        if not arguments.base_url and set(arguments.cases) & set("ab"):
            bench.by_the_recipe()
        if set(arguments.cases) & set("cde"):
            bench.by_the_package()
        bench.ratios()
        if arguments.logs:
            (arguments.logs / "throughput.json").write_text(json.dumps(bench.results, indent=1))


if __name__ == "__main__":
    main()
