"""What a page costs the request side: processor time on one core, against a server of its own.

    python benchmarks/bench_requests.py --pages 400 --kilobytes 400

The server answers at once from another process, so that what is measured is base64, JSON, HTTP and
the judging of the answer. For comparison the same through `chat.completions.create`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import openai

from deepseek_ocr_loaders.endpoint import Endpoint
from deepseek_ocr_loaders.page import Picture, SourceInfo
from deepseek_ocr_loaders.reading import PageReader
from deepseek_ocr_loaders.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

SERVER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent.parent / "tests")!r})
from support.fault_server import FaultServer
with FaultServer(parse=False) as server:
    print(server.base_url, flush=True)
    sys.stdin.read()
"""
INFO = SourceInfo("bench.pdf", "bench.pdf", "0" * 64, "pdf", 1)


class Provider:
    """A server that says what vLLM says."""

    def __init__(self, base_url: str) -> None:
        self.endpoint = Endpoint(base_url, "m", "vllm", "m", version="0.26.0", max_concurrency=128)

    async def acquire(self) -> list[Endpoint]:
        """Give it."""
        return [self.endpoint]

    async def recover(self, _failed: Endpoint) -> None:
        """Say that it lives."""

    async def release(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run the server in a process of its own, and give its address."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


async def measure(
    name: str, send: Callable[[int], Awaitable[object]], pages: int, at_once: int
) -> None:
    """Send the pages, and print a row of the table."""
    await asyncio.gather(*(send(number) for number in range(at_once)))
    turns = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with turns:
            await send(number)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one(number) for number in range(pages)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"| {name} | {1000 * cpu / pages:.2f} | {pages / cpu:.0f} | {pages / wall:.0f} |")


async def run(base_url: str, pages: int, at_once: int, size: int) -> None:
    """Measure this package, its cache, and the typed method of the OpenAI client."""
    pictures = [Picture(os.urandom(size), "image/png", 1280, 1920) for _ in range(at_once)]

    async def read(reader: PageReader, number: int) -> None:
        await reader.read(INFO, number, "1", pictures[number % at_once])

    options = {"prompt": "free", "max_concurrency": at_once}
    async with PageReader(Settings.create(options), Provider(base_url)) as reader:
        await measure("PageReader", lambda n: read(reader, n), pages, at_once)
    with tempfile.TemporaryDirectory() as folder:
        kept = Settings.create({**options, "cache": folder})
        async with PageReader(kept, Provider(base_url)) as reader:
            await measure("PageReader, from the cache", lambda n: read(reader, n), pages, at_once)
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:

        async def create(number: int) -> None:
            data = base64.b64encode(pictures[number % at_once].data).decode()
            await client.chat.completions.create(
                model="m",
                temperature=0,
                messages=[
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image_url",
                                "image_url": {"url": f"data:image/png;base64,{data}"},
                            },
                            {"type": "text", "text": "Free OCR."},
                        ],
                    }
                ],
                extra_body={"skip_special_tokens": False},
            )

        await measure("chat.completions.create", create, pages, at_once)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=400)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--kilobytes", type=int, default=400, help="of the picture")
    given = parser.parse_args()
    print("| | CPU ms a page | pages/s of one core | pages/s |\n|---|---|---|---|")
    with server() as base_url:
        asyncio.run(run(base_url, given.pages, given.at_once, given.kilobytes * 1000))


if __name__ == "__main__":
    main()
