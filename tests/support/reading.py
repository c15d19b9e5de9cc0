"""How the tests of the request side read pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders.page import PageResult, SourceInfo
from deepseek_ocr_loaders.reading import PageReader
from deepseek_ocr_loaders.settings import Settings
from support.fault_server import FakeProvider, FaultServer, marked_picture, markers_in

if TYPE_CHECKING:
    from collections.abc import Iterable

INFO = SourceInfo("scans/report.pdf", "report.pdf", "0" * 64, "pdf", 1000)


def reader(server: FaultServer | FakeProvider, **options: Any) -> PageReader:
    """A reader for the server."""
    provider = server if isinstance(server, FakeProvider) else FakeProvider(server)
    return PageReader(Settings.create(options), provider)


async def read_all(
    server: FaultServer | FakeProvider, numbers: int | Iterable[int] = 1, **options: Any
) -> list[PageResult | BaseException]:
    """Read pages with these numbers at once; errors are results."""
    pages = range(numbers) if isinstance(numbers, int) else list(numbers)
    async with reader(server, **options) as open_reader:
        return await asyncio.gather(
            *(
                open_reader.read(INFO, number, str(number + 1), marked_picture(number))
                for number in pages
            ),
            return_exceptions=True,
        )


async def read_one(server: FaultServer | FakeProvider, **options: Any) -> PageResult:
    """Read the page with the number 0."""
    async with reader(server, **options) as open_reader:
        return await open_reader.read(INFO, 0, "1", marked_picture(0))


def pairing(results: Iterable[PageResult | BaseException]) -> list[int | None]:
    """The number in each answer; None for a page that failed or that has not exactly one."""
    found: list[int | None] = []
    for result in results:
        numbers = set(markers_in(result.raw)) if isinstance(result, PageResult) else set()
        found.append(numbers.pop() if len(numbers) == 1 else None)
    return found
