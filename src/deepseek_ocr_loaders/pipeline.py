"""The path of all pages of a run: opened, drawn, read and handed out, in page order and bounded.

Three limits hold at any moment: pages drawn and not yet answered (memory of pictures), pages sent
(the reader's own limit), and pages between the first of the two and the consumer (memory of
results). Nothing runs ahead of a consumer that has stopped asking.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from deepseek_ocr_loaders import documents, images, source
from deepseek_ocr_loaders.errors import (
    AllPagesFailedError,
    ConfigurationError,
    DeepSeekOCRError,
    PageError,
    SourceError,
)
from deepseek_ocr_loaders.page import PageResult, PageStatus
from deepseek_ocr_loaders.page_ranges import select_pages
from deepseek_ocr_loaders.reading import PageReader, is_fatal
from deepseek_ocr_loaders.report import RunReport
from deepseek_ocr_loaders.server.provider import provider_for
from deepseek_ocr_loaders.slots import Slots, shared_slots

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from fsspec import AbstractFileSystem

    from deepseek_ocr_loaders.documents import DocumentData
    from deepseek_ocr_loaders.page import Picture, SourceInfo
    from deepseek_ocr_loaders.progress import Progress
    from deepseek_ocr_loaders.settings import Settings
    from deepseek_ocr_loaders.source import OpenSource

__all__ = ["all_wanted", "read_converted", "read_documents"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAGES = 8
"""Pages under way until the consumer asks for a second Document, or a page made none.

A reader who wants one page, or stops after the first, does not pay for a hundred.
"""

_all_wanted: ContextVar[bool] = ContextVar("all_wanted", default=False)

TEXT_LAYER = "text_layer"


@contextlib.contextmanager
def all_wanted() -> Iterator[None]:
    """Let runs that begin in this block go at full speed at once: every Document is wanted.

    A variable of the context reaches them through whatever a user's subclass does in between.
    """
    with _wanting(all_pages=True):
        yield


@contextlib.contextmanager
def _wanting(*, all_pages: bool) -> Iterator[None]:
    token = _all_wanted.set(all_pages)
    try:
        yield
    finally:
        # A coroutine that was dropped is closed in another context.
        with contextlib.suppress(ValueError):
            _all_wanted.reset(token)


def read_documents(
    sources: Iterable[object],
    settings: Settings,
    *,
    fs: AbstractFileSystem | None = None,
    report: RunReport | None = None,
) -> AsyncGenerator[DocumentData, None]:
    """Give the Documents of all sources, in order, while later pages are drawn and read.

    Args:
        sources: Whatever `source.open_source` takes; asked for one after the other.
        settings: What the run was told.
        fs: Where paths are looked up; the local disk by default.
        report: Filled while the run goes on.

    Raises:
        SourceError: A source cannot be read, under `on_error="raise"`.
        PageError: A page cannot be read, under `on_error="raise"`.
        AllPagesFailedError: Not one page could be read, whatever the policy.
        ServerError: The server is gone; whatever the policy.
    """
    return read_converted(lambda document: document, sources, settings, fs=fs, report=report)


async def read_converted(
    convert: Callable[[DocumentData], T],
    sources: Iterable[object],
    settings: Settings,
    *,
    fs: AbstractFileSystem | None = None,
    report: RunReport | None = None,
) -> AsyncGenerator[T, None]:
    """Give the same as `read_documents`, each Document converted.

    A generator around that generator would do the same, but for the end of an event loop: it
    closes all generators that were left open at once, and two that hold one another collide.
    """
    run = _Run(sources, settings, fs, report if report is not None else RunReport())
    try:
        async for document in run.documents():
            yield convert(document)
    finally:
        await run.close()


@dataclass(slots=True)
class _PageItem:
    """A page under way, in the order in which it will be handed out."""

    document: _OpenDocument
    index: int
    task: asyncio.Task[PageResult]


@dataclass(slots=True)
class _EndOfDocument:
    document: _OpenDocument


@dataclass(slots=True)
class _FailedSource:
    name: str
    error: SourceError


_Item = _PageItem | _EndOfDocument | _FailedSource


class _OpenDocument:
    """A source and what is made of it; closed when its last page has been read."""

    def __init__(self, opened: OpenSource, settings: Settings) -> None:
        self.opened = opened
        self.info: SourceInfo = opened.info
        self.builder = documents.DocumentBuilder(opened.info, settings)
        self.pages_under_way = 0
        self.pages_to_come = 0
        self.all_started = False


class _Run:
    def __init__(
        self,
        sources: Iterable[object],
        settings: Settings,
        fs: AbstractFileSystem | None,
        report: RunReport,
    ) -> None:
        self.sources = sources
        self.settings = settings
        self.fs = fs
        self.report = report
        self.items: asyncio.Queue[_Item | None] = asyncio.Queue()
        self.window = Slots(FIRST_PAGES)
        self.more_wanted = _all_wanted.get()
        self.reader = PageReader(settings, provider_for(settings))
        self.reader_started: asyncio.Task[None] | None = None
        self.drawn: Slots | None = None
        self.fatal: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.producer: asyncio.Task[None] | None = None
        self.tasks: set[asyncio.Task[PageResult]] = set()
        self.open_documents: set[_OpenDocument] = set()
        self.failures: list[DeepSeekOCRError] = []
        self.held_back: list[DocumentData] = []
        self.any_page_read = False
        self.pages_selected = 0
        self.progress: Progress | None = None

    # --- what the consumer sees ---------------------------------------------------------------

    async def documents(self) -> AsyncGenerator[DocumentData, None]:
        if self.settings.show_progress:
            from deepseek_ocr_loaders.progress import Progress  # noqa: PLC0415 - rarely wanted

            self.progress = Progress()
        # Runs that the user's sources and callbacks begin are none of this one.
        with _wanting(all_pages=False):
            self.producer = asyncio.create_task(self._produce())
        while (item := await self._next_item()) is not None:
            made = await self._finish(item)
            for document in made:
                yield document
                self._open_window()
            if not made and not self._is_last_page(item):
                # Whoever waits for the first Document needs more pages.
                self._open_window()
        if self.failures and not self.any_page_read:
            raise self._all_failed()
        if not self.pages_selected and not self.failures and self.settings.pages is not None:
            msg = "pages selects no page of any document: there are fewer pages than that"
            raise ConfigurationError(msg)

    async def _next_item(self) -> _Item | None:
        with contextlib.suppress(asyncio.QueueEmpty):
            return self.items.get_nowait()
        getting = asyncio.ensure_future(self.items.get())
        try:
            await self._unless_fatal(getting)
            return getting.result()
        finally:
            getting.cancel()

    async def _unless_fatal(self, awaited: asyncio.Future[Any]) -> None:
        """Wait for it, but not longer than the run can live."""
        assert self.producer is not None  # noqa: S101 - for the type checker
        waiting: set[asyncio.Future[Any]] = {awaited, self.fatal}
        if not self.producer.done():
            waiting.add(self.producer)
        while not awaited.done():
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if awaited.done():
                return
            if self.fatal.done():
                raise self.fatal.result()
            if self.producer.done():
                waiting.discard(self.producer)
                self.producer.result()  # an error of the producer is an error of the run

    async def _finish(self, item: _Item) -> list[DocumentData]:
        if isinstance(item, _EndOfDocument):
            return self._release_held_back(item.document.builder.finish())
        if isinstance(item, _FailedSource):
            return self._failed_source(item)
        await self._unless_fatal(item.task)
        page = item.task.result()
        item.document.pages_to_come -= 1
        self.window.release()
        self._account(item.document.info, page)
        if page.error is not None:
            return self._failed_page(item.document, page)
        self.any_page_read = True
        return self._release_held_back(item.document.builder.add(page))

    @staticmethod
    def _is_last_page(item: _Item) -> bool:
        """Tell whether the end of the document follows, which may make the Document."""
        return isinstance(item, _PageItem) and not item.document.pages_to_come

    def _open_window(self) -> None:
        """Let the run go at full speed: more is wanted than the first page."""
        self.more_wanted = True
        self._widen()

    def _widen(self) -> None:
        if self.more_wanted and self.drawn is not None:
            # Results are small: enough may wait that one slow page does not stop the others.
            self.window.grow(4 * self.reader.concurrency + 16)

    def _account(self, info: SourceInfo, page: PageResult) -> None:
        entry = self.report.add(info, page)
        if self.progress is not None:
            self.progress.advance()
        if self.settings.on_page is not None:
            with _wanting(all_pages=False):
                self.settings.on_page(entry)

    # --- failed pages -------------------------------------------------------------------------

    def _failed_page(self, document: _OpenDocument, page: PageResult) -> list[DocumentData]:
        error = page.error
        assert error is not None  # noqa: S101 - for the type checker
        policy = self.settings.on_error
        outcome = {"raise": "the run ends", "skip": "skipped", "record": "recorded"}[policy]
        logger.error("%s; %s (on_error=%s)", error, outcome, policy)
        if policy == "raise":
            raise error
        self.failures.append(error)
        if policy == "skip":
            return []
        return self._hold_back(document.builder.add(page))

    def _failed_source(self, item: _FailedSource) -> list[DocumentData]:
        policy = self.settings.on_error
        self.report.failed_documents.append(str(item.error))
        if policy == "raise":
            raise item.error
        logger.error("%s; the document is left out (on_error=%s)", item.error, policy)
        self.failures.append(item.error)
        if policy == "skip":
            return []
        return self._hold_back([documents.failed_source_document(item.name, item.error)])

    def _hold_back(self, made: list[DocumentData]) -> list[DocumentData]:
        # Until one page was read the run may still turn out to be a failure as a whole, and then
        # no record of it may have reached an index.
        if self.any_page_read:
            return made
        self.held_back += made
        return []

    def _release_held_back(self, made: list[DocumentData]) -> list[DocumentData]:
        if not self.held_back:
            return made
        if not self.any_page_read:
            self.held_back += made
            return []
        released, self.held_back = self.held_back + made, []
        return released

    def _all_failed(self) -> DeepSeekOCRError:
        first = self.failures[0]
        if len(self.failures) == 1:
            return first
        msg = (
            f"not one of {len(self.failures)} pages or documents could be read; the first: {first}"
        )
        return AllPagesFailedError(msg, errors=self.failures)

    # --- what runs ahead of the consumer ------------------------------------------------------

    async def _produce(self) -> None:
        sources = iter(self.sources)
        end = object()
        while (given := await asyncio.to_thread(next, sources, end)) is not end:
            try:
                opened = await self._open(given)
            except SourceError as error:
                self.items.put_nowait(_FailedSource(error.source, error))
                continue
            await self._start_pages(opened)
        self.items.put_nowait(None)

    async def _open(self, given: object) -> _OpenDocument:
        opening = asyncio.ensure_future(
            asyncio.to_thread(source.open_source, given, settings=self.settings, fs=self.fs)
        )
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on: take what it opens, to close it.
            with contextlib.suppress(Exception):
                (await opening).close()
            raise
        document = _OpenDocument(opened, self.settings)
        self.open_documents.add(document)
        return document

    async def _start_pages(self, document: _OpenDocument) -> None:
        total = document.info.total_pages
        indexes = select_pages(self.settings.pages, total)
        if not indexes:
            logger.warning("%s has %d pages: pages selects none", document.info.source, total)
        self.pages_selected += len(indexes)
        document.pages_to_come = len(indexes)
        if self.progress is not None:
            self.progress.expect(len(indexes))
        for index in indexes:
            await self.window.acquire()
            document.pages_under_way += 1
            task = asyncio.create_task(self._page(document, index))
            self.tasks.add(task)
            task.add_done_callback(self._page_done)
            self.items.put_nowait(_PageItem(document, index, task))
        document.all_started = True
        self.items.put_nowait(_EndOfDocument(document))
        await self._close_document(document)

    def _page_done(self, task: asyncio.Task[PageResult]) -> None:
        self.tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self.fatal.done():
            self.fatal.set_result(error)

    async def _page(self, document: _OpenDocument, index: int) -> PageResult:
        try:
            return await self._read(document, index)
        except PageError as error:
            if is_fatal(error):
                raise
            label = await self._in_pool(document.opened.label, index)
            return PageResult(index=index, label=label, status=PageStatus.FAILED, error=error)
        finally:
            document.pages_under_way -= 1
            await self._close_document(document)

    async def _close_document(self, document: _OpenDocument) -> None:
        if document.all_started and not document.pages_under_way:
            self.open_documents.discard(document)
            await asyncio.shield(asyncio.to_thread(document.opened.close))

    async def _read(self, document: _OpenDocument, index: int) -> PageResult:
        opened = document.opened
        if self.settings.ocr == "auto":
            blocks = await self._in_pool(opened.text_layer, index)
            if blocks is not None:
                label = await self._in_pool(opened.label, index)
                return PageResult(
                    index=index, label=label, blocks=blocks, engine=TEXT_LAYER, model="pymupdf"
                )
        async with await self._drawing_slots():
            label, picture = await self._in_pool(self._draw, opened, index)
            if self.settings.skip_blank and not picture.has_ink:
                return PageResult(
                    index=index,
                    label=label,
                    width=picture.width,
                    height=picture.height,
                    rotation=picture.rotation,
                    status=PageStatus.BLANK,
                )
            result = await self.reader.read(document.info, index, label, picture)
            if self.settings.images == "save":
                result = await self._in_pool(self._save_images, document.info, picture, result)
            return result

    def _draw(self, opened: OpenSource, index: int) -> tuple[str, Picture]:
        picture = opened.picture(
            index, model=self.reader.model, always_tiled=self.reader.always_tiled
        )
        return opened.label(index), picture

    def _save_images(self, info: SourceInfo, picture: Picture, result: PageResult) -> PageResult:
        folder = self.settings.image_dir
        assert folder is not None  # noqa: S101 - the settings see to it
        stem = f"{info.content_hash[:16]}-p{result.number}"
        blocks = images.save_images(picture, result.blocks, image_dir=folder, stem=stem)
        return replace(result, blocks=blocks)

    async def _drawing_slots(self) -> Slots:
        """Start the reader with the first page that needs one, and give the limit of pictures."""
        if self.reader_started is None:
            self.reader_started = asyncio.create_task(self.reader.start())
        await asyncio.shield(self.reader_started)
        # A few pages wait drawn, so that a free place at the server is filled at once.
        capacity = self.reader.concurrency + max(2, self.reader.concurrency // 8)
        if self.drawn is None:
            self.drawn = shared_slots(self.reader.limit_key, capacity)
            self._widen()
        self.drawn.grow(capacity)
        return self.drawn

    async def _in_pool(self, work: Callable[..., T], *args: Any) -> T:
        running = asyncio.get_running_loop().run_in_executor(_pool(), work, *args)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # It takes milliseconds, and the source must not be closed under it.
            with contextlib.suppress(Exception):
                await running
            raise

    # --- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Abort what is under way and free everything; also after an error or a `break`."""
        unfinished: list[asyncio.Task[Any]] = [*self.tasks]
        unfinished += [task for task in (self.producer, self.reader_started) if task is not None]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        for document in self.open_documents:
            await asyncio.to_thread(document.opened.close)
        self.open_documents.clear()
        close_sources = getattr(self.sources, "close", None)
        if close_sources is not None:
            await asyncio.to_thread(close_sources)
        await self.reader.aclose()
        self.report.ended = time.monotonic()
        if self.progress is not None:
            self.progress.close()
        if self.fatal.done():
            self.fatal.result()  # mark as seen


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        max_workers=max(2, min(8, os.cpu_count() or 2)), thread_name_prefix="deepseek-ocr-draw"
    )


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: the child makes its own.
    os.register_at_fork(after_in_child=_pool.cache_clear)
