"""A scripted OpenAI-compatible server over real sockets, and pages that it can tell apart.

    with FaultServer([reset(), status(429, retry_after=1)]) as server:   # then it answers well
        ... DeepSeekOCRLoader(path, base_url=server.base_url) ...
    assert len(server.requests) == 3

The script is a list with one step for each chat request, in order of arrival (a step of None
answers well; after the end of the list all are answered well), or a function that is called with
the `ChatRequest` and gives the step (None answers well; it may be `async`).

A good answer repeats the number that the picture carries as bars (`marked_picture`, `marked_pdf`),
so that a test can tell whether the answers came back to the right pages: `marker_text(7)` is in
the text of the page with the number 7. Bars survive drawing, scaling, and being cut into halves.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import io
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pymupdf
from PIL import Image, ImageDraw
from pydantic import SecretStr

from deepseek_ocr_loaders.endpoint import Endpoint
from deepseek_ocr_loaders.errors import ServerDiedError, ServerUnreachableError
from deepseek_ocr_loaders.page import Picture

if TYPE_CHECKING:
    from types import TracebackType

MODEL = "deepseek-ai/DeepSeek-OCR"

# --- pages that carry a number -------------------------------------------------------------

_BITS = 20
_CELLS = _BITS + 6  # a start bar, the number, a checksum of four bits, an end bar
_MARKER = re.compile(r"marker-(\d{7})")


def marker_text(number: int) -> str:
    """The words by which the answer for the page with that number is known."""
    return f"marker-{number:07d}"


def markers_in(text: str) -> list[int]:
    """The numbers of all pages whose words are in the text."""
    return [int(found) for found in _MARKER.findall(text)]


def _checksum(number: int) -> int:
    return (sum((number >> shift) & 15 for shift in range(0, _BITS, 4)) * 7 + 5) & 15


def _bars(number: int) -> list[int]:
    if not 0 <= number < 1 << _BITS:
        msg = f"a page carries a number from 0 to {(1 << _BITS) - 1}"
        raise ValueError(msg)
    code = (1 << (_BITS + 5)) | (number << 5) | (_checksum(number) << 1) | 1
    return [(code >> (_CELLS - 1 - cell)) & 1 for cell in range(_CELLS)]


def _bar_boxes(number: int, width: float, height: float) -> list[tuple[float, float, float, float]]:
    # Two strips with white between them, so that a page can be cut there and both halves tell.
    cell = width / _CELLS
    return [
        (index * cell, top * height, (index + 1) * cell, bottom * height)
        for top, bottom in ((0.05, 0.4), (0.6, 0.95))
        for index, bar in enumerate(_bars(number))
        if bar
    ]


def marked_image(number: int, width: int = 104, height: int = 156) -> Image.Image:
    """A white page with the number as black bars."""
    image = Image.new("L", (width, height), 255)
    draw = ImageDraw.Draw(image)
    for x0, y0, x1, y1 in _bar_boxes(number, width, height):
        draw.rectangle((round(x0), round(y0), round(x1) - 1, round(y1) - 1), fill=0)
    return image


def marked_picture(number: int, width: int = 104, height: int = 156) -> Picture:
    """The same, encoded as the request side wants it."""
    stream = io.BytesIO()
    marked_image(number, width, height).save(stream, "PNG", compress_level=1)
    return Picture(stream.getvalue(), "image/png", width, height)


def marked_pdf(numbers: Sequence[int], width: float = 260, height: float = 390) -> bytes:
    """A PDF with one page for each number."""
    document = pymupdf.open()
    for number in numbers:
        page = document.new_page(width=width, height=height)
        shape = page.new_shape()
        for box in _bar_boxes(number, width, height):
            shape.draw_rect(pymupdf.Rect(*box))
        shape.finish(color=None, fill=(0, 0, 0))
        shape.commit()
    data: bytes = document.tobytes()
    document.close()
    return data


def read_marker(data: bytes) -> int | None:
    """The number that an encoded picture carries, or None."""
    image = Image.open(io.BytesIO(data)).convert("L")
    width, height = image.size
    for share in (0.2, 0.1, 0.3, 0.8, 0.9, 0.7, 0.5):
        y = min(height - 1, int(height * share))
        bits = [
            int(image.getpixel((min(width - 1, int((cell + 0.5) * width / _CELLS)), y)) < 128)
            for cell in range(_CELLS)
        ]
        code = int("".join(map(str, bits)), 2)
        number = (code >> 5) & ((1 << _BITS) - 1)
        if bits == _bars(number):
            return number
    return None


# --- what the server can do with a request --------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What happens to one chat request; made by the functions below."""

    kind: str = "answer"
    text: str | None = None
    finish_reason: str | None = "stop"
    code: int = 200
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    pause: float = 0.0
    usage: tuple[int, int] = (273, 40)


def answer(
    text: str | None = None,
    finish_reason: str | None = "stop",
    *,
    delay: float = 0.0,
    usage: tuple[int, int] = (273, 40),
) -> Step:
    """Answer with that text; without one, with the number of the page."""
    return Step(text=text, finish_reason=finish_reason, delay=delay, usage=usage)


def loop(word: str = "Ward office\n", times: int = 1500, finish_reason: str = "length") -> Step:
    """Answer with a beginning and then a loop."""
    return Step(text="Intro\n" + word * times, finish_reason=finish_reason, usage=(273, 7000))


def status(
    code: int,
    message: str = "scripted fault",
    *,
    retry_after: str | float | None = None,
    delay: float = 0.0,
) -> Step:
    """Refuse with that code, in the shape that vLLM gives to errors."""
    error = {"message": message, "type": "ScriptedError", "param": None, "code": code}
    headers = () if retry_after is None else (("Retry-After", str(retry_after)),)
    body = json.dumps({"error": error}).encode()
    return Step("body", code=code, body=body, headers=headers, delay=delay)


def body(content: bytes | str | object, code: int = 200, *, delay: float = 0.0) -> Step:
    """Reply with exactly that body (bytes or text as they are, anything else as JSON)."""
    if isinstance(content, str):
        content = content.encode()
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Step("body", code=code, body=data, delay=delay)


def wrong_json() -> Step:
    """Reply 200 with JSON that breaks off in the middle, of the announced length."""
    return body(b'{"id": "x", "choices": [{"message": {"content": "He')


def null_content() -> Step:
    """Answer with a content of null."""
    message = {"role": "assistant", "content": None}
    return body({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def no_choices() -> Step:
    """Reply 200 without `choices`."""
    return body({"id": "x", "object": "chat.completion"})


def reset(delay: float = 0.0) -> Step:
    """Break the connection (TCP reset) instead of replying."""
    return Step("reset", delay=delay)


def hang_up(delay: float = 0.0) -> Step:
    """Close the connection in order, without a reply."""
    return Step("hang_up", delay=delay)


def half() -> Step:
    """Send the first half of the answer, then break the connection."""
    return Step("half")


def slow(pause: float = 0.02) -> Step:
    """Send the answer in pieces of 64 bytes with a pause after each."""
    return Step("slow", pause=pause)


def silence() -> Step:
    """Never reply; the request stays open until the client gives up."""
    return Step("silence")


def die(delay: float = 0.0) -> Step:
    """The whole server dies: every connection is reset and the port is closed."""
    return Step("die", delay=delay)


@dataclass
class ChatRequest:
    """One request to `/v1/chat/completions`, as it arrived.

    Attributes:
        index: Counted from 0 over the life of the server object, restarts included.
        body: The JSON.
        headers: Names in lower case.
        arrived: `time.monotonic()`.
        outcome: What was done: `replied`, `aborted` (the client went away), or the kind of fault.
    """

    index: int
    body: dict[str, Any]
    headers: dict[str, str]
    arrived: float = field(default_factory=time.monotonic)
    outcome: str = "open"
    _marker: list[int | None] = field(default_factory=list, repr=False)

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts of the last message."""
        content = self.body["messages"][-1]["content"]
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    @property
    def prompt(self) -> str:
        """The words of the request."""
        return "".join(part["text"] for part in self.parts if part["type"] == "text")

    @property
    def pictures(self) -> list[bytes]:
        """The decoded pictures of the request."""
        urls = [part["image_url"]["url"] for part in self.parts if part["type"] == "image_url"]
        return [base64.b64decode(url.partition(",")[2]) for url in urls]

    @property
    def marker(self) -> int | None:
        """The number that the first picture carries."""
        if not self._marker:
            pictures = self.pictures
            self._marker.append(read_marker(pictures[0]) if pictures else None)
        return self._marker[0]


Script = (
    Sequence[Step | None] | Callable[[ChatRequest], Step | Awaitable[Step | None] | None] | None
)


class FaultServer:
    """The server; a context manager that listens on a free port of the loopback address.

    Args:
        script: See the head of this module.
        api_key: Where given, requests without it get 401 (but for `/health`).
        models: The ids that `/v1/models` lists.
        version: What `/version` says; None gives 404.
        max_model_len: What `/v1/models` says.
        seconds: How long a good answer takes.
        workers: Requests that are worked on at once; the others wait, as in a real queue.
        metrics: Have `/metrics`, as vLLM has, with what runs and what waits.
        strict: Refuse (400) what vLLM refuses: not exactly one picture, a picture inside the
            text, something that is no picture, `max_tokens` above 7000.
        refuse_fields: Request fields that give 400, as an old server does.
        close_each: Close the connection after each reply without announcing it.
        reset_first: Reset the first connections, this many of them, as soon as they are made.
        parse: False leaves bodies unread (for measurements); the answer is then always the same.
    """

    def __init__(
        self,
        script: Script = None,
        *,
        api_key: str | None = None,
        models: Sequence[str] = (MODEL,),
        version: str | None = "0.26.0",
        max_model_len: int = 8192,
        seconds: float = 0.0,
        workers: int | None = None,
        metrics: bool = False,
        strict: bool = True,
        refuse_fields: Sequence[str] = (),
        close_each: bool = False,
        reset_first: int = 0,
        parse: bool = True,
    ) -> None:
        self.script = script
        self.api_key = api_key
        self.models = list(models)
        self.version = version
        self.max_model_len = max_model_len
        self.seconds = seconds
        self.strict = strict
        self.refuse_fields = tuple(refuse_fields)
        self.close_each = close_each
        self.reset_first = reset_first
        self.parse = parse
        self.health = 200
        self.requests: list[ChatRequest] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.generation = 0
        self.port = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.connections_made = 0
        self._workers = workers
        self.metrics = metrics
        self._gate: asyncio.Semaphore | None = None
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    # --- for the test ---

    @property
    def base_url(self) -> str:
        """The address up to and including `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def alive(self) -> bool:
        """False after `die()` or `kill()`, until `restart()`."""
        return self._server is not None

    @property
    def aborted(self) -> int:
        """Requests whose client went away before the reply."""
        return sum(request.outcome == "aborted" for request in self.requests)

    def endpoint(self, **changes: Any) -> Endpoint:
        """The server as the request side knows it."""
        known: dict[str, Any] = {
            "base_url": self.base_url,
            "model": self.models[0] if self.models else MODEL,
            "engine": "vllm",
            "reader": self.models[0] if self.models else MODEL,
            "version": self.version,
            "max_model_len": self.max_model_len,
            "api_key": SecretStr(self.api_key) if self.api_key else None,
            "generation": self.generation,
        }
        return Endpoint(**{**known, **changes})

    def kill(self) -> None:
        """Die now: reset every connection and close the port."""
        self._call(self._die())

    def restart(self) -> None:
        """Come back at the same port after a death."""
        self._call(self._listen())
        self.generation += 1

    def wait_idle(self, seconds: float = 5.0) -> bool:
        """Wait until no request is open; False where some still are."""
        deadline = time.monotonic() + seconds
        while self.in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.in_flight

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._call(self._drain())
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join(10)
        self._loop.close()

    # --- inside ---

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        if self._server is not None:
            return
        if self._workers is not None and self._gate is None:
            self._gate = asyncio.Semaphore(self._workers)
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, backlog=1024, limit=1 << 20
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _die(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for writer in list(self._writers):
            _reset(writer)

    async def _drain(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_made += 1
        if self._server is None or self.reset_first > 0:
            self.reset_first -= 1
            _reset(writer)
            return
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer) and not self.close_each:
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:])
        }
        data = await reader.readexactly(int(headers.get("content-length", "0")))
        self.paths.append(path)
        self.headers.append(headers)
        plain = self._plain(path, headers)
        if plain is not None:
            return await _reply(writer, *plain)
        request = ChatRequest(len(self.requests), json.loads(data) if self.parse else {}, headers)
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        work = self._loop.create_task(self._chat(request, writer))
        gone = self._loop.create_task(reader.read(1))  # ends only when the client goes away
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                request.outcome = "aborted" if request.outcome == "open" else request.outcome
                return False
            return work.result()
        finally:
            self.in_flight -= 1
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    def _plain(self, path: str, headers: dict[str, str]) -> tuple[int, bytes] | None:
        wanted = f"Bearer {self.api_key}" if self.api_key else None
        if path == "/health":
            return self.health, b""
        if wanted and headers.get("authorization") != wanted:
            return 401, b'{"error":"Unauthorized"}'
        if path == "/v1/models":
            limit = self.max_model_len
            cards = [{"id": m, "owned_by": "vllm", "max_model_len": limit} for m in self.models]
            return 200, json.dumps({"data": cards}).encode()
        if path == "/version" and self.version:
            return 200, json.dumps({"version": self.version}).encode()
        if path == "/metrics" and self.metrics:
            running = min(self.in_flight, self._workers or self.in_flight)
            labels = '{engine="0",model_name="m"}'
            return 200, (
                "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
                f"vllm:num_requests_running{labels} {running:.1f}\n"
                f"vllm:num_requests_waiting{labels} {self.in_flight - running:.1f}\n"
            ).encode()
        return None if path == "/v1/chat/completions" else (404, b'{"detail":"Not Found"}')

    async def _chat(self, request: ChatRequest, writer: asyncio.StreamWriter) -> bool:
        step = self._refusal(request) if self.parse and self.strict else None
        step = step or await self._step(request)
        if step.kind == "silence":
            await asyncio.Event().wait()
        async with self._gate or contextlib.nullcontext():
            await asyncio.sleep(step.delay + (self.seconds if step.kind == "answer" else 0))
        if step.kind in {"reset", "hang_up", "die"}:
            request.outcome = step.kind
            if step.kind == "die":
                await self._die()
            elif step.kind == "reset":
                _reset(writer)
            return False
        data = step.body if step.body is not None else self._completion(request, step)
        if step.kind == "half":
            request.outcome = "half"
            await _reply(writer, 200, data[: len(data) // 2], length=len(data))
            _reset(writer)
            return False
        done = await _reply(writer, step.code, data, headers=step.headers, pause=step.pause)
        request.outcome = "replied"
        return done

    async def _step(self, request: ChatRequest) -> Step:
        if callable(self.script):
            step = self.script(request)
            if inspect.isawaitable(step):
                step = await step
        else:
            script = self.script or ()
            step = script[request.index] if request.index < len(script) else None
        return step or Step()

    def _refusal(self, request: ChatRequest) -> Step | None:
        pictures = [part["image_url"] for part in request.parts if part["type"] == "image_url"]
        fields = [name for name in self.refuse_fields if name in request.body]
        if request.body["model"] not in self.models:
            return status(404, f"The model `{request.body['model']}` does not exist.")
        message = ""
        if fields:
            message = f"Extra inputs are not permitted: {', '.join(fields)}"
        elif len(pictures) != 1:
            message = f"At most 1 image(s) may be provided in one prompt, not {len(pictures)}"
        elif "base64," in request.prompt or not pictures[0]["url"].startswith("data:image/"):
            message = "the picture is not the data URL of an image part"
        elif int(request.body.get("max_tokens") or 0) > 7000:
            message = "This model's maximum context length is 8192 tokens: max_tokens is too large"
        else:
            try:
                _ = request.marker
            except (OSError, ValueError) as error:
                message = f"cannot identify image file: {type(error).__name__}"
        return status(400, message) if message else None

    def _completion(self, request: ChatRequest, step: Step) -> bytes:
        text = step.text
        if text is None:
            marker = request.marker if self.parse else 0
            text = "no marker" if marker is None else marker_text(marker)
            if self.parse and "<|grounding|>" in request.prompt:
                text = f"<|ref|>text<|/ref|><|det|>[[40, 61, 900, 400]]<|/det|>\n{text}  \n\n"
        message = {"role": "assistant", "content": text}
        reply = {
            "id": f"chatcmpl-{request.index}",
            "object": "chat.completion",
            "created": 0,
            "model": self.models[0] if self.models else MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": step.finish_reason}],
            "usage": {
                "prompt_tokens": step.usage[0],
                "completion_tokens": step.usage[1],
                "total_tokens": sum(step.usage),
            },
        }
        return json.dumps(reply).encode()


async def _reply(
    writer: asyncio.StreamWriter,
    code: int,
    data: bytes,
    *,
    headers: Sequence[tuple[str, str]] = (),
    length: int | None = None,
    pause: float = 0.0,
) -> bool:
    head = [f"HTTP/1.1 {code} {'OK' if code == 200 else 'Fault'}"]
    head += ["Content-Type: application/json", f"Content-Length: {length or len(data)}"]
    head += [f"{name}: {value}" for name, value in headers]
    writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
    if pause:
        for start in range(0, len(data), 64):
            writer.write(data[start : start + 64])
            await writer.drain()
            await asyncio.sleep(pause)
    else:
        writer.write(data)
    await writer.drain()
    return True


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            # A linger time of zero makes close() send RST instead of FIN.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class FakeProvider:
    """An `EndpointProvider` over fault servers.

    Args:
        *servers: They are running.
        restarts: Deaths of each server that are healed; 0 plays a server that someone else runs.
        restart_seconds: How long a restart takes.
    """

    def __init__(
        self, *servers: FaultServer, restarts: int = 0, restart_seconds: float = 0.0, **known: Any
    ) -> None:
        self.servers = servers
        self.restarts = restarts
        self.restart_seconds = restart_seconds
        self.known = known
        self.recoveries = 0
        self.released = 0
        self._locks: dict[str, asyncio.Lock] = {}

    async def acquire(self) -> list[Endpoint]:
        return [server.endpoint(**self.known) for server in self.servers]

    async def recover(self, failed: Endpoint) -> Endpoint | None:
        server = next(s for s in self.servers if s.base_url == failed.base_url)
        self.recoveries += 1
        async with self._locks.setdefault(failed.base_url, asyncio.Lock()):
            if server.generation > failed.generation:
                return server.endpoint(**self.known)
            if server.alive and server.health == 200:
                return None
            if self.restarts == 0:
                msg = f"nothing answers at {failed.base_url}"
                raise ServerUnreachableError(msg, base_url=failed.base_url)
            if server.generation >= self.restarts:
                msg = f"the server died {server.generation + 1} times"
                raise ServerDiedError(msg)
            await asyncio.sleep(self.restart_seconds)
            await asyncio.to_thread(server.restart)
            return server.endpoint(**self.known)

    async def release(self) -> None:
        self.released += 1
