"""One request gets its answer whatever happens on the way, or the error that says why not.

A server that dies takes all pages that were there with it, and one of them may be what killed it.
So they are sent again alone, one after the other, before anything else goes to that server: a page
that is there when it dies a second time is the cause, and is not sent again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders.client import OPTIONAL_FIELDS, Fault, PageClient
from deepseek_ocr_loaders.dispatch import Line, turns
from deepseek_ocr_loaders.errors import (
    AnswerError,
    AuthenticationError,
    DeepSeekOCRError,
    ModelNotFoundError,
    QuarantinedPageError,
    RequestError,
    RequestRejectedError,
    RequestTimeoutError,
    ServerError,
    ServerUnreachableError,
)
from deepseek_ocr_loaders.pace import CHECK_SECONDS, DEFAULT_CONCURRENCY, load_of, next_limit
from deepseek_ocr_loaders.retry import RETRY_AFTER_LIMIT, policy

if TYPE_CHECKING:
    from deepseek_ocr_loaders.client import PageRequest, Reply
    from deepseek_ocr_loaders.dispatch import Lane, Ticket
    from deepseek_ocr_loaders.endpoint import Endpoint, EndpointProvider

__all__ = ["Delivery", "Errand", "Route"]

logger = logging.getLogger(__name__)

DEATHS = 2
"""A page that was there at so many deaths of a server is taken for their cause."""

_TOKEN_LIMIT = re.compile(
    r"context length|max_(?:completion_|new_)?tokens|maximum.{0,20}tokens", re.IGNORECASE
)
_UNKNOWN_FIELD = re.compile(
    r"vllm_xargs|repetition_detection|ngram|window_size|whitelist|logits.?processor"
    r"|extra (?:inputs|fields)|extra_forbidden|un(?:known|expected|recognized|supported) \S*"
    r"(?:field|argument|parameter|key)",
    re.IGNORECASE,
)
_ROOM_FOR_PROMPT = 1200
"""Tokens of the largest page (1121 by DeepSeek-OCR-2) and of a prompt, rounded up."""


@dataclass(eq=False)
class Route:
    """The way to one server, which may be restarted under another address.

    Attributes:
        endpoint: Where it is now.
        epoch: Counts its restarts as this load saw them.
        gone: True after it was given up.
        corrections: Request fields that this server needs otherwise, learned from its refusals.
    """

    endpoint: Endpoint
    client: PageClient
    lane: Lane
    limit: int
    epoch: int = 0
    gone: bool = False
    corrections: dict[str, Any] = field(default_factory=dict)
    recovery: asyncio.Task[None] | None = None
    pacing: asyncio.Task[None] | None = None

    def learn(
        self, fault: Fault, request: PageRequest, sent: dict[str, Any], errand: Errand
    ) -> bool:
        """Correct what can be corrected about a refused request; True where it is worth a try.

        Args:
            fault: The refusal.
            request: What was sent.
            sent: The corrections under which it was sent.
            errand: The page; the fields that were taken with it before are not the cause.
        """
        if fault.status_code not in {400, 422}:
            return False
        if "max_tokens" not in sent and _TOKEN_LIMIT.search(fault.server_message):
            context = self.endpoint.max_model_len or 8192
            self.corrections["max_tokens"] = max(256, min(7000, context - _ROOM_FOR_PROMPT))
            return True
        optional = [name for name in OPTIONAL_FIELDS if name in request.fields and name not in sent]
        new = errand.taken is not None and not errand.taken.issuperset(optional)
        if optional and (new or _UNKNOWN_FIELD.search(fault.server_message)):
            if OPTIONAL_FIELDS[0] not in self.corrections:
                logger.warning(
                    "%s does not take the fields that guard against loops (%s); pages are sent "
                    "without them, and loops are found in the answers only",
                    self.endpoint.base_url,
                    fault.server_message,
                )
            self.corrections.update(dict.fromkeys(OPTIONAL_FIELDS))
            return True
        return False


@dataclass(eq=False)
class Errand:
    """One page on its way, over all requests that it takes.

    Attributes:
        source: The document, for messages.
        page_number: Counted from 1, for messages.
        route: Who answered last.
        taken: The fields of requests of the page that a server took; None before the first.
        killed: The servers that died while they had the page, one entry for each death.
        attempts: How often the request that is under way was sent.
    """

    source: str
    page_number: int
    route: Route | None = None
    taken: set[str] | None = None
    killed: list[Route] = field(default_factory=list)
    attempts: int = 0


class Delivery:
    """Sends the pages of one load to the servers that it was given.

    Args:
        provider: Gives the servers, and restarts them where that is its job.
        retries: Tries beyond the first.
        timeout: Seconds that the server may take for a page.
        max_concurrency: Pages at the servers at once; None follows the servers' own limits.
    """

    def __init__(
        self,
        provider: EndpointProvider,
        *,
        retries: int,
        timeout: float,
        max_concurrency: int | None,
    ) -> None:
        self._provider = provider
        self._retries = retries
        self._timeout = timeout
        self._max_concurrency = max_concurrency
        self._line = Line(0, self._lanes)
        self._clients: list[PageClient] = []
        self._error: DeepSeekOCRError | None = None
        self.routes: list[Route] = []

    async def start(self) -> None:
        """Get the servers.

        Raises:
            ServerError: There is none.
        """
        self._turns = turns()
        endpoints = await self._provider.acquire()
        if not endpoints:
            msg = "there is no server to send pages to"
            raise ServerUnreachableError(msg, base_url="")
        share = None
        if self._max_concurrency is not None:
            share = max(1, -(-self._max_concurrency // len(endpoints)))
        for endpoint in endpoints:
            limit = share or _own_limit(endpoint)
            lane = self._turns.join(endpoint.base_url, limit)
            route = Route(endpoint, self._connect(endpoint, limit), lane, limit)
            self.routes.append(route)
            if share is None and endpoint.max_concurrency is None:
                route.pacing = asyncio.create_task(self._keep_pace(route))
                route.pacing.add_done_callback(_tell)
        self._line.limit = self._max_concurrency or sum(route.limit for route in self.routes)
        self._turns.add(self._line)

    @property
    def concurrency(self) -> int:
        """Requests that may be open at once."""
        return self._line.limit

    async def send(self, request: PageRequest, errand: Errand) -> Reply:
        """Give the answer of a server.

        Raises:
            RequestError: There is none for this page.
            ServerError: There will be none for any page.
        """
        errand.attempts = 0
        try:
            reply: Reply = await policy(self._retries)(self._attempt, request, errand)
        except Fault as fault:
            raise _surface(fault, errand) from fault.__cause__
        return reply

    async def aclose(self) -> None:
        """Close the connections and let the servers go; may be called twice."""
        if self.routes:
            self._turns.remove(self._line)
        beside = [task for route in self.routes for task in (route.recovery, route.pacing) if task]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        for route in self.routes:
            if not route.gone:
                self._turns.leave(route.endpoint.base_url, route.limit)
        self.routes.clear()
        clients, self._clients = self._clients, []
        for client in clients:
            await client.aclose()
        await self._provider.release()

    async def _keep_pace(self, route: Route) -> None:
        """Follow the queue of a server that does not say how many pages it works on."""
        settled = False
        await asyncio.sleep(CHECK_SECONDS)  # a short run has nothing to follow
        while not route.gone and (load := await load_of(route.endpoint)) is not None:
            limit = next_limit(route.limit, load, full=route.lane.load >= 1, settled=settled)
            settled = settled or limit < route.limit
            if limit != route.limit and not route.gone:
                logger.debug(
                    "%s works on %d requests and %d wait: %d pages at once from now on",
                    route.endpoint.base_url,
                    load.running,
                    load.waiting,
                    limit,
                )
                old, route.limit = route.limit, limit
                self._line.limit += limit - old
                self._turns.change(route.endpoint.base_url, old, limit)
            await asyncio.sleep(CHECK_SECONDS)

    def _lanes(self) -> list[Lane]:
        return [route.lane for route in self.routes if not route.gone]

    def _connect(self, endpoint: Endpoint, limit: int) -> PageClient:
        client = PageClient(endpoint, connections=limit)
        self._clients.append(client)
        return client

    async def _attempt(self, request: PageRequest, errand: Errand) -> Reply:
        if self._error is not None:
            raise self._error
        only = (lambda: self._lane_for_suspect(errand)) if errand.killed else None
        async with self._turns.turn(self._line, again=errand.attempts > 0, only=only) as ticket:
            route = self._route_of(ticket.lane)
            if route is not None:
                errand.route = route
                epoch = route.epoch
                try:
                    return await self._exchange(route, ticket, request, errand)
                except Fault as caught:
                    fault = caught
                    if only:
                        # It keeps its turn: the next suspect must not meet a dying server.
                        await self._look_after(route, epoch, fault, errand)
                        raise
        if route is None:  # given up between the grant and now
            return await self._attempt(request, errand)
        await self._look_after(route, epoch, fault, errand)
        raise fault

    def _lane_for_suspect(self, errand: Errand) -> Lane:
        """Give the lane where a page is tried alone: of the server that it may have killed."""
        routes = (*reversed(errand.killed), *self.routes)
        return next((r.lane for r in routes if not r.gone), routes[0].lane)

    def _route_of(self, lane: Lane) -> Route | None:
        return next((r for r in self.routes if r.lane is lane and not r.gone), None)

    async def _exchange(
        self, route: Route, ticket: Ticket, request: PageRequest, errand: Errand
    ) -> Reply:
        while True:
            sent = dict(route.corrections)
            body = request.body(route.endpoint.model, sent)
            errand.attempts += 1
            try:
                async with ticket.within(self._timeout):
                    reply = await route.client.send(body)
            except TimeoutError:
                what = f"no answer came within {self._timeout:g} s"
                raise Fault(what, timed_out=True) from None
            except Fault as fault:
                if not route.learn(fault, request, sent, errand):
                    raise
            else:
                errand.taken = (errand.taken or set()) | (request.fields.keys() - sent.keys())
                return replace(reply, requests=errand.attempts)

    async def _look_after(self, route: Route, epoch: int, fault: Fault, errand: Errand) -> None:
        """Find out whether the server is to blame, and see that it comes back."""
        code = fault.status_code
        if fault.retry_after is not None and code in {429, 503}:
            self._turns.pause(route.lane, min(fault.retry_after, RETRY_AFTER_LIMIT))
        if code is not None and code < 500:
            return
        # A server that cannot be reached is left alone until it is known what became of it; one
        # broken request is no reason to stop the others.
        unreachable = not fault.delivered
        with self._turns.hold(route.lane) if unreachable else nullcontext():
            await self._recover(route, epoch)
        died = route.epoch > epoch or route.gone
        fault.at_once = died
        if died and fault.delivered:
            errand.killed.append(route)
        if len(errand.killed) >= DEATHS:
            msg = (
                f"{_place(errand)}: the server died {DEATHS} times with this page, so it is not "
                f"sent again"
            )
            raise QuarantinedPageError(
                msg,
                source=errand.source,
                page_number=errand.page_number,
                attempts=errand.attempts,
                status_code=code,
                server_message=fault.server_message,
            ) from fault.__cause__

    async def _recover(self, route: Route, epoch: int) -> None:
        if route.gone or route.epoch > epoch:
            return
        if route.recovery is None:
            route.recovery = asyncio.create_task(self._replace(route))
            route.recovery.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(route.recovery)

    async def _replace(self, route: Route) -> None:
        old = route.endpoint
        try:
            new = await self._provider.recover(old)
        except (ServerError, AuthenticationError, ModelNotFoundError) as error:
            route.gone = True
            self._turns.leave(old.base_url, route.limit)
            if all(other.gone for other in self.routes):
                self._error = error
                self._turns.remove(self._line, error)
                raise
            logger.error("%s; its pages go to the other servers", error)  # noqa: TRY400
            self._turns.kick()
            return
        finally:
            route.recovery = None
        if new is None:
            return
        logger.warning("the server at %s died and was replaced", old.base_url)
        route.endpoint = new
        route.epoch += 1
        if new.base_url != old.base_url:
            self._turns.leave(old.base_url, route.limit)
            route.lane = self._turns.join(new.base_url, route.limit)
        if (new.base_url, new.api_key) != (old.base_url, old.api_key):
            route.client = self._connect(new, route.limit)
        self._turns.kick()


def _tell(pacing: asyncio.Task[None]) -> None:
    """Log why a server's queue is not followed any more; the run goes on at its last limit."""
    if not pacing.cancelled() and (error := pacing.exception()) is not None:
        logger.error("the queue of a server cannot be followed: %r", error)


def _own_limit(endpoint: Endpoint) -> int:
    """Give the number of pages that keeps a server busy without a long queue there."""
    if endpoint.max_concurrency is None:
        return DEFAULT_CONCURRENCY
    # A few wait at the server, so that a place that becomes free is filled at once.
    return endpoint.max_concurrency + max(1, endpoint.max_concurrency // 8)


def _place(errand: Errand) -> str:
    return f"{errand.source}, page {errand.page_number}"


def _surface(fault: Fault, errand: Errand) -> RequestError:
    """Make the error that the user sees of the last fault of a page."""
    endpoint = errand.route.endpoint if errand.route else None
    where = endpoint.base_url if endpoint else "the server"
    code = fault.status_code
    kind, advice = RequestError, ""
    if code in {401, 403}:
        kind = AuthenticationError
        advice = f"; pass the key of the server at {where} as api_key or DEEPSEEK_OCR_API_KEY"
    elif code == 404:
        kind = ModelNotFoundError
        model = endpoint.model if endpoint else ""
        advice = f"; {where} does not serve the model {model!r}, or is no OpenAI-compatible server"
    elif fault.timed_out or code == 408:
        kind = RequestTimeoutError
        advice = "; raise timeout if the server is slow"
    elif fault.no_answer:
        kind = AnswerError
    elif code is not None and 300 <= code < 500 and not fault.heals:
        kind = RequestRejectedError
    status = "" if code is None or fault.no_answer else f" (HTTP {code})"
    said = f": {fault.server_message}" if fault.server_message else ""
    times = f", after {errand.attempts} attempts" if errand.attempts > 1 else ""
    return kind(
        f"{_place(errand)}: {fault.what}{status}{said}{times}{advice}",
        source=errand.source,
        page_number=errand.page_number,
        attempts=errand.attempts,
        status_code=code,
        server_message=fault.server_message,
    )
