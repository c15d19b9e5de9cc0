"""Synchronous use of the asynchronous core: one background event loop for the process.

It works inside a running loop too (a notebook cell, an ASGI handler, uvloop), because nothing is
ever run on the caller's loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from deepseek_ocr_loaders.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
    from typing import Any

__all__ = ["iterate", "run"]

T = TypeVar("T")


class _Background:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._main, name="deepseek-ocr-loop", daemon=True)
        self.thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def stop(self) -> None:
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=10)


_lock = threading.Lock()
_background: _Background | None = None


def _get_background() -> _Background:
    global _background  # noqa: PLW0603 - one loop for the process is the point
    with _lock:
        if _background is None or not _background.thread.is_alive():
            _background = _Background()
        return _background


def _stop_background() -> None:
    if _background is not None:
        _background.stop()


def _forget_background() -> None:
    global _background, _lock
    _background, _lock = None, threading.Lock()


atexit.register(_stop_background)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_background)


class _Step(Generic[T]):
    """One coroutine on the background loop, waited for and, on Ctrl-C, cancelled and awaited."""

    def __init__(self, background: _Background, coroutine: Coroutine[Any, Any, T]) -> None:
        self.background = background
        self.coroutine = coroutine
        self.done = threading.Event()
        self.task: asyncio.Task[T] | None = None

    def start(self) -> None:
        self.background.loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        self.task = self.background.loop.create_task(self.coroutine)
        self.task.add_done_callback(lambda _: self.done.set())

    def wait(self) -> None:
        while not self.done.wait(timeout=1.0):
            if not self.background.thread.is_alive():
                msg = "the program is ending: no page can be read any more"
                raise RuntimeError(msg)

    def result(self) -> T:
        try:
            self.start()  # Ctrl-C may come in the middle of it
            self.wait()
        except BaseException:
            if self.background.thread.is_alive():
                self.background.loop.call_soon_threadsafe(self._cancel)
                self.done.wait(timeout=30)
            raise
        assert self.task is not None  # noqa: S101 - for the type checker
        return self.task.result()

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
        else:  # it was interrupted before it was handed over
            self.coroutine.close()
            self.done.set()

    async def ended(self) -> None:
        """Wait on the loop for its end, which a second Ctrl-C did not wait for."""
        if self.task is not None and not self.task.done():
            if not self.task.cancelling():
                self.task.cancel()
            await asyncio.wait({self.task})


def _step(coroutine: Coroutine[Any, Any, T]) -> _Step[T]:
    background = _get_background()
    if threading.current_thread() is background.thread:
        coroutine.close()
        msg = (
            "a synchronous method was called from inside the package's own event loop (from an "
            "on_page callback?): call the asynchronous one, or do it in another thread"
        )
        raise ConfigurationError(msg)
    return _Step(background, coroutine)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and give its result."""
    return _step(coroutine).result()


def iterate(make: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
    """Give what an asynchronous generator gives, one step at a time, on the background loop.

    Args:
        make: Makes the generator; called with the first step.
    """
    made: AsyncGenerator[T, None] | None = None
    last: _Step[list[T]] | None = None

    async def step() -> list[T]:
        nonlocal made
        if made is None:
            made = make()
        try:
            return [await anext(made)]
        except StopAsyncIteration:
            return []

    try:
        while True:
            last = _step(step())
            values = last.result()
            if not values:
                return
            yield values[0]
    finally:
        if made is not None and last is not None:
            _close(made, last)


def _close(made: AsyncGenerator[Any, None], last: _Step[Any]) -> None:
    background = _background
    if background is None or not background.thread.is_alive() or sys.is_finalizing():
        return  # the loop closed its generators when it ended

    async def close() -> None:
        await last.ended()
        await made.aclose()

    step = _Step(background, close())
    if threading.current_thread() is background.thread:  # garbage collection runs anywhere
        step.start()
    else:
        step.result()
