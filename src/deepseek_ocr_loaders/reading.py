"""How one page is read: from the cache or by the server, judged, and tried again if need be."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from deepseek_ocr_loaders import halves, ladder
from deepseek_ocr_loaders.answer import interpret
from deepseek_ocr_loaders.cache import PageCache, cache_folder
from deepseek_ocr_loaders.client import PageRequest
from deepseek_ocr_loaders.delivery import Delivery, Errand
from deepseek_ocr_loaders.errors import (
    AuthenticationError,
    ModelNotFoundError,
    RequestError,
    ServerError,
)
from deepseek_ocr_loaders.page import Attempt, Block, PageResult, PageStatus, Usage
from deepseek_ocr_loaders.prompts import is_grounded, prompt_text

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from deepseek_ocr_loaders.client import Reply
    from deepseek_ocr_loaders.endpoint import Endpoint, EndpointProvider
    from deepseek_ocr_loaders.page import Picture, SourceInfo
    from deepseek_ocr_loaders.settings import Settings

__all__ = ["PageReader", "is_fatal"]

logger = logging.getLogger(__name__)

_UNFINISHED = {PageStatus.REPETITION, PageStatus.TRUNCATED, PageStatus.EMPTY}


def is_fatal(error: BaseException) -> bool:
    """Tell whether an error concerns every page, so that the run cannot go on."""
    return isinstance(error, ServerError | AuthenticationError | ModelNotFoundError)


@dataclass(frozen=True, slots=True)
class _Said:
    """One answer of the server, as it is kept: on the whole page or on a half of it."""

    text: str
    finish_reason: str
    has_ink: bool
    top: int = 0
    height: int = 0
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class _Kept:
    """A finished page in the cache."""

    said: Annotated[tuple[_Said, ...], Field(min_length=1, max_length=2)]
    engine: str
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one method made of a page."""

    said: tuple[_Said, ...]
    status: PageStatus
    blocks: tuple[Block, ...]
    grounded: bool

    @property
    def worth(self) -> tuple[bool, int]:
        """Greater is better: finished, then the length of the text."""
        text = sum(len(block.text) for block in self.blocks)
        return self.status not in _UNFINISHED, text

    @property
    def finish_reason(self) -> str:
        return next((s.finish_reason for s in self.said if s.finish_reason != "stop"), "stop")


class PageReader:
    """Reads the pages of one run; an asynchronous context manager.

    Args:
        settings: What the run was told.
        provider: Gives the servers.
    """

    def __init__(self, settings: Settings, provider: EndpointProvider) -> None:
        self._prompt = prompt_text(settings.prompt)
        self._delivery = Delivery(
            provider,
            retries=settings.retries,
            timeout=settings.timeout,
            max_concurrency=settings.max_concurrency,
        )
        folder = cache_folder(settings.cache)
        self._cache = None if folder is None else PageCache(folder)
        self._warned: set[str] = set()

    async def start(self) -> None:
        """Get the servers, and start one if that is the provider's job.

        Raises:
            ServerError: There is none.
        """
        await self._delivery.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections and let the servers go; may be called twice."""
        await self._delivery.aclose()

    @property
    def concurrency(self) -> int:
        """Pages that may be at the servers at once."""
        return self._delivery.concurrency

    @property
    def limit_key(self) -> tuple[str, ...]:
        """What the runs that share the limit have in common: the servers."""
        return tuple(sorted(route.endpoint.base_url for route in self._delivery.routes))

    @property
    def model(self) -> str:
        """The model's id, which decides at what size pages are drawn."""
        return self._endpoint.model

    @property
    def always_tiled(self) -> bool:
        """True where small pictures must be padded, because one of them would end the server."""
        return any(route.endpoint.dies_of_small_pictures for route in self._delivery.routes)

    @property
    def _endpoint(self) -> Endpoint:
        return self._delivery.routes[0].endpoint

    async def read(self, info: SourceInfo, index: int, label: str, picture: Picture) -> PageResult:
        """Give what is on a page.

        Args:
            info: The document.
            index: The page, counted from 0.
            label: Its number as printed.
            picture: The page, drawn.

        Raises:
            PageError: This page cannot be read.
            ServerError: No page can be read.
        """
        page = PageResult(index, label, picture.width, picture.height, picture.rotation)
        key = self._key(info, picture) if self._cache is not None else ""
        if self._cache is not None and (kept := await asyncio.to_thread(self._cache.get, key)):
            found = self._from_cache(kept, page, picture)
            if found is not None:
                return found
        errand = Errand(info.source, index + 1)
        best, attempts = await self._climb(info, picture, errand)
        endpoint = errand.route.endpoint if errand.route else self._endpoint
        usage = sum((attempt.usage for attempt in attempts), Usage())
        result = replace(
            self._result(page, best, engine=endpoint.engine, model=endpoint.reader),
            usage=usage,
            attempts=tuple(attempts),
        )
        if self._cache is not None and best.status is PageStatus.OK:
            entry = asdict(_Kept(best.said, result.engine, result.model, usage))
            await asyncio.to_thread(self._cache.put, key, entry)
        return result

    async def _climb(
        self, info: SourceInfo, picture: Picture, errand: Errand
    ) -> tuple[_Reading, list[Attempt]]:
        """Try one method after the other until an answer is finished; give the best of them."""
        best: _Reading | None = None
        attempts: list[Attempt] = []
        for method in ladder.methods(self._endpoint, self._prompt):
            started = time.monotonic()
            replies: list[Reply] = []
            requests = 0
            reading = None
            try:
                reading = await self._try(method, info, picture, errand, replies)
            except RequestError as error:
                if best is None or is_fatal(error):
                    raise
                logger.warning("%s; the best answer so far is kept", error)
                requests = error.attempts
            if reading is None and not requests:
                continue
            attempts.append(
                Attempt(
                    method,
                    reading.status if reading else PageStatus.FAILED,
                    reading.finish_reason if reading else "",
                    requests + sum(reply.requests for reply in replies),
                    time.monotonic() - started,
                    sum((reply.usage for reply in replies), Usage()),
                )
            )
            if reading is None:
                break
            if method == ladder.NGRAM and best is not None and reading.said == best.said:
                self._warn_once(
                    "the limits on repeated n-grams had no effect: %s may run without "
                    "NGramPerReqLogitsProcessor",
                    self._endpoint.base_url,
                )
            if best is None or reading.worth > best.worth:
                best = reading
            if reading.status not in _UNFINISHED:
                break
        assert best is not None  # noqa: S101 - the first method gives one or raises
        if best.status in _UNFINISHED:
            logger.warning(
                "%s, page %d: ends as %s after %s",
                info.source,
                errand.page_number,
                best.status.value,
                ", ".join(attempt.method for attempt in attempts),
            )
        return best, attempts

    async def _try(
        self,
        method: str,
        info: SourceInfo,
        picture: Picture,
        errand: Errand,
        replies: list[Reply],
    ) -> _Reading | None:
        """Read the page by one method; None where the method does not apply to it."""
        fields = ladder.fields(method, self._endpoint, info.kind)
        if method != ladder.HALVES:
            reply = await self._delivery.send(PageRequest(picture, self._prompt, fields), errand)
            replies.append(reply)
            said = _Said(reply.text, reply.finish_reason, picture.has_ink)
            return self._judge((said,), picture)
        parts = await asyncio.to_thread(halves.split, picture)
        if parts is None:
            return None
        both = []
        for half in parts:
            text, finish_reason = "", "stop"
            if half.picture.has_ink:
                request = PageRequest(half.picture, self._prompt, fields)
                reply = await self._delivery.send(request, errand)
                replies.append(reply)
                text, finish_reason = reply.text, reply.finish_reason
            both.append(
                _Said(
                    text,
                    finish_reason,
                    half.picture.has_ink,
                    half.top,
                    half.picture.height,
                    half.overlaps,
                )
            )
        return self._judge(tuple(both), picture)

    def _judge(self, said: tuple[_Said, ...], picture: Picture) -> _Reading:
        answers = [
            interpret(
                part.text,
                finish_reason=part.finish_reason,
                has_ink=part.has_ink,
                prompt=self._prompt,
            )
            for part in said
        ]
        if len(said) == 1:
            answer = answers[0]
            return _Reading(said, answer.status, answer.blocks, answer.grounded)
        placed = [
            tuple(
                halves.on_page(block, part.top, part.height, picture.height)
                for block in answer.blocks
            )
            for part, answer in zip(said, answers, strict=True)
        ]
        blocks = halves.join(*placed, overlap=said[0].overlaps)
        found = {answer.status for part, answer in zip(said, answers, strict=True) if part.has_ink}
        worst = (PageStatus.REPETITION, PageStatus.TRUNCATED)
        status = next((status for status in worst if status in found), PageStatus.OK)
        if found == {PageStatus.EMPTY}:  # one half may well be a picture without text
            status = PageStatus.EMPTY
        return _Reading(said, status, blocks, all(answer.grounded for answer in answers))

    def _result(
        self, page: PageResult, reading: _Reading, *, engine: str, model: str
    ) -> PageResult:
        grounded = reading.grounded or not is_grounded(self._prompt)
        if not grounded:
            self._warn_once(
                "boxes were asked for and none came (page %d); the server may strip special tokens",
                page.number,
            )
        return replace(
            page,
            status=reading.status,
            blocks=reading.blocks,
            raw="\n\n".join(part.text for part in reading.said),
            engine=engine,
            model=model,
            grounded=grounded,
        )

    def _warn_once(self, message: str, *args: object) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message, *args)

    def _key(self, info: SourceInfo, picture: Picture) -> str:
        endpoint = self._endpoint
        return PageCache.key(
            picture=hashlib.sha256(picture.data).hexdigest(),
            size=[picture.width, picture.height],
            prompt=self._prompt,
            engine=endpoint.engine,
            model=endpoint.model,
            reader=endpoint.reader,
            # The methods differ by it, and with them the answer of a difficult page.
            kind=info.kind,
        )

    def _from_cache(
        self, kept: dict[str, Any], page: PageResult, picture: Picture
    ) -> PageResult | None:
        """Make a page of what was kept; None where today's parser does not call it finished."""
        try:
            entry = _kept_shape().validate_python(kept)
        except ValidationError:
            return None
        reading = self._judge(entry.said, picture)
        if reading.status is not PageStatus.OK:
            return None
        result = self._result(page, reading, engine=entry.engine, model=entry.model)
        return replace(result, usage=entry.usage, cached=True)


@cache
def _kept_shape() -> TypeAdapter[_Kept]:
    return TypeAdapter(_Kept)
