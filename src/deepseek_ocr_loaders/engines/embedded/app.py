"""The HTTP routes, the same as vLLM's, around reading a page."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from deepseek_ocr_loaders.engines.embedded import tokens
from deepseek_ocr_loaders.engines.embedded.grammar import answer, strip_special_tokens
from deepseek_ocr_loaders.engines.embedded.layout import arrange
from deepseek_ocr_loaders.engines.embedded.request import (
    MAX_BODY_BYTES,
    Ask,
    Refusal,
    open_picture,
    parse,
)

if TYPE_CHECKING:
    from PIL import Image
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from deepseek_ocr_loaders.engines.embedded.recognise import Line

__all__ = ["Reader", "create_app"]

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """What reads a picture; `Recogniser`, or something smaller in a test."""

    name: str
    version: str
    threads: int

    async def lines(self, image: Image.Image) -> list[Line]:
        """Give the lines of a picture."""


def create_app(reader: Reader, *, model: str, api_key: str | None) -> ASGIApp:
    """Give the ASGI application.

    Args:
        reader: Ready to read.
        model: The id that is served.
        api_key: What requests to `/v1` must carry as a bearer token; None asks for nothing.
    """
    service = _Service(reader, model)
    app = Starlette(
        routes=[
            Route("/health", _health),
            Route("/version", service.version),
            Route("/metrics", service.metrics),
            Route("/v1/models", service.models),
            Route("/v1/chat/completions", service.chat, methods=["POST"]),
        ],
        exception_handlers={
            Refusal: _refused,
            HTTPException: _http_error,
            Exception: _failed,
        },
    )
    return _KeyGuard(app, api_key) if api_key else app


async def _health(_: Request) -> Response:
    return Response()  # the port is bound only once the models are loaded


class _Service:
    def __init__(self, reader: Reader, model: str) -> None:
        self._reader = reader
        self._model = model
        # The lines of a page are read on all cores; a page that is searched for lines takes one,
        # for about a third of the time, and 300 MB. More pages at once would only take memory.
        self._pages_at_once = reader.threads // 2 + 1
        self._slots = asyncio.Semaphore(self._pages_at_once)
        self._running = 0
        self._waiting = 0
        self._created = int(time.time())

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": self._reader.version})

    async def models(self, _: Request) -> Response:
        card = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "rapidocr",
            "root": self._model,
            "max_model_len": tokens.MAX_MODEL_LEN,
            "reader": self._reader.name,
            "max_num_seqs": self._pages_at_once,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def metrics(self, _: Request) -> Response:
        label = '{engine="0",model_name="' + self._model.replace('"', "") + '"}'
        return PlainTextResponse(
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{label} {self._running}.0\n"
            "# TYPE vllm:num_requests_waiting gauge\n"
            f"vllm:num_requests_waiting{label} {self._waiting}.0\n"
        )

    async def chat(self, request: Request) -> Response:
        body = await _body(request)
        ask = await run_in_threadpool(parse, body, model=self._model)
        del body
        work = asyncio.ensure_future(self._answer(ask))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                logger.info("the client went away; its page is dropped")
                return Response(status_code=499)
            return JSONResponse(work.result())
        finally:
            work.cancel()
            gone.cancel()

    async def _answer(self, ask: Ask) -> dict[str, Any]:
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        self._running += 1
        try:
            return await self._read(ask)
        finally:
            self._running -= 1
            self._slots.release()

    async def _read(self, ask: Ask) -> dict[str, Any]:
        begin = time.perf_counter()
        image = await run_in_threadpool(open_picture, ask.picture)
        lines = await self._reader.lines(image)
        text = await run_in_threadpool(
            lambda: answer(ask.prompt, arrange(lines), image.width, image.height)
        )
        prompt_tokens = (
            tokens.picture_tokens(image.width, image.height) + tokens.count(ask.prompt) + 2
        )
        room = max(tokens.MAX_MODEL_LEN - prompt_tokens, 1)
        text, completion_tokens, was_cut = tokens.cut(text, min(ask.max_tokens or room, room))
        logger.info(
            "read a page of %d × %d pixels: %d lines in %.2f s",
            image.width,
            image.height,
            len(lines),
            time.perf_counter() - begin,
        )
        if ask.skip_special_tokens:
            text = strip_special_tokens(text)
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "logprobs": None,
                    "finish_reason": "length" if was_cut else "stop",
                }
            ],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }


async def _body(request: Request) -> bytes:
    media_type = request.headers.get("content-type", "").lower().partition(";")[0].strip()
    if media_type != "application/json":
        msg = "Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(msg)
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > MAX_BODY_BYTES:
            msg = f"the request is longer than {MAX_BODY_BYTES} bytes"
            raise Refusal(msg, status=413, kind="Request Entity Too Large")
    return bytes(chunks)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101 - registered for nothing else
    return JSONResponse(error.body(), status_code=error.status)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    refusal = Refusal(error.detail, status=error.status_code, kind=error.detail)
    return JSONResponse(refusal.body(), status_code=error.status_code, headers=error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    # Starlette raises it again for the server's log; the words may hold text of the page.
    refusal = Refusal(
        f"reading the page failed: {type(error).__name__}", status=500, kind="InternalServerError"
    )
    return JSONResponse(refusal.body(), status_code=500)


class _KeyGuard:
    """Lets nothing under `/v1` through without the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            kind, _, key = given.partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(key, self._key):
                response = JSONResponse({"error": "Unauthorized"}, status_code=401)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)
