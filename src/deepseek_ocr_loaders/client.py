"""One request, one page: how a page is put to the server, and what its reply means.

The body is sent as bytes through the low-level `post` of the OpenAI client: its typed
`chat.completions.create` walks through the whole base64 text of the picture and costs more than
twice the processor time a page (6 to 7 ms against 2.7 ms for a picture of 400 kB, one core).
"""

from __future__ import annotations

import base64
import email.utils
import json
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import openai

from deepseek_ocr_loaders.http import is_loopback, tls
from deepseek_ocr_loaders.page import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openai._types import RequestOptions

    from deepseek_ocr_loaders.endpoint import Endpoint
    from deepseek_ocr_loaders.page import Picture

__all__ = ["OPTIONAL_FIELDS", "Fault", "PageClient", "PageRequest", "Reply"]

CONNECT_SECONDS = 10.0
"""A server that is there accepts in milliseconds; the long wait is for its answer."""

KEEP_ALIVE_SECONDS = 4.0
"""Below the 5 s after which vLLM and uvicorn close a quiet connection, perhaps under a request."""

OPTIONAL_FIELDS = ("vllm_xargs", "repetition_detection")
"""Fields that only some servers know; without them the page can still be read."""

_MESSAGE_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server answered.

    Attributes:
        text: What the model said, byte for byte; empty where the server sent null.
        finish_reason: `stop`, `length`, `repetition` …; empty where the server does not say.
        usage: Tokens as the server counted them.
        requests: How many requests it took, those that failed included.
    """

    text: str
    finish_reason: str
    usage: Usage
    requests: int = 1


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What is asked about one picture; where it is sent is decided later.

    Attributes:
        picture: The page, or a part of it.
        prompt: The words of the prompt, as they are sent.
        fields: Further fields of the request, in the server's own names.
    """

    picture: Picture
    prompt: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    _bodies: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def body(self, model: str, corrections: Mapping[str, Any]) -> bytes:
        """Give the JSON for one server; built once, and used again for every retry.

        Args:
            model: What the server calls the model.
            corrections: Fields to set for this server; None takes a field away.
        """
        fields = {"temperature": 0, "skip_special_tokens": False, **self.fields, **corrections}
        rest = json.dumps({name: value for name, value in fields.items() if value is not None})
        key = f"{model}\n{rest}"
        if key not in self._bodies:
            self._bodies.clear()  # one at a time: it is the largest thing that a page holds
            self._bodies[key] = self._build(model, rest)
        return self._bodies[key]

    def _build(self, model: str, rest: str) -> bytes:
        # The picture first, then the words, and no system message: the server joins them so
        # whatever the order, and glues a system message to the prompt without a separator.
        words = {"type": "text", "text": self.prompt}
        return b"".join(
            (
                b'{"model":',
                json.dumps(model).encode(),
                b',"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":',
                b'"data:' + self.picture.media_type.encode() + b";base64,",
                base64.b64encode(self.picture.data),
                b'"}},',
                json.dumps(words).encode(),
                b"]}],",
                rest.encode()[1:],
            )
        )


class Fault(Exception):  # noqa: N818 - not an error that leaves the package
    """One request that gave no answer; what is made of it is decided where it is retried.

    Attributes:
        what: What happened, as the middle of a sentence.
        status_code: The HTTP status; None where there was no reply.
        server_message: What the server said, on one line, without secrets.
        retry_after: Seconds that the server asks to wait; None where it does not ask.
        delivered: True where the server may have begun to work on the page.
        timed_out: True where the time limit ended it.
        no_answer: True where the reply is a success without an answer in it.
        at_once: True where there is nothing to wait for, because the server was replaced.
    """

    def __init__(
        self,
        what: str,
        *,
        status_code: int | None = None,
        server_message: str = "",
        retry_after: float | None = None,
        delivered: bool = True,
        timed_out: bool = False,
        no_answer: bool = False,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.status_code = status_code
        self.server_message = server_message
        self.retry_after = retry_after
        self.delivered = delivered
        self.timed_out = timed_out
        self.no_answer = no_answer
        self.at_once = False

    @property
    def heals(self) -> bool:
        """True where the same request may well succeed later."""
        if self.status_code is None or self.no_answer:
            return True
        return self.status_code in {408, 409, 429} or self.status_code >= 500


class PageClient:
    """Connections to one server.

    Args:
        endpoint: The server.
        connections: How many requests are open at most.
    """

    def __init__(self, endpoint: Endpoint, *, connections: int) -> None:
        secret = endpoint.api_key.get_secret_value() if endpoint.api_key else ""
        self._secret = secret
        self._client = _Client(
            base_url=endpoint.base_url,
            # Never the variable OPENAI_API_KEY, which is meant for someone else.
            api_key=secret or "none",
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(
                verify=tls(),
                # A proxy from the environment would swallow what is meant for this machine.
                trust_env=not is_loopback(endpoint.base_url),
                follow_redirects=False,
                timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
                limits=httpx2.Limits(
                    max_connections=None,
                    max_keepalive_connections=connections,
                    keepalive_expiry=KEEP_ALIVE_SECONDS,
                ),
            ),
        )
        self._options: RequestOptions = (
            {} if secret else {"headers": {"Authorization": openai.Omit()}}
        )

    async def send(self, body: bytes) -> Reply:
        """Send a page and wait for its answer, however long that takes.

        Args:
            body: The JSON of a `PageRequest`.

        Raises:
            Fault: There is no answer.
        """
        try:
            response = await self._client.post(
                "/chat/completions", cast_to=httpx2.Response, content=body, options=self._options
            )
        except openai.APIStatusError as error:
            raise self._refused(error.response) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)
            delivered = not isinstance(cause, unsent)
            what = "the connection broke" if delivered else "no connection could be made"
            what += f" ({self._clean(str(cause)) or type(cause).__name__})"
            raise Fault(what, delivered=delivered) from cause
        return self._answer(response)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _refused(self, response: httpx2.Response) -> Fault:
        code = response.status_code
        what = "the server refuses the request" if code < 500 else "the server failed"
        if 300 <= code < 400:
            what = "the server redirects to another address"
        return Fault(
            what,
            status_code=code,
            server_message=self._clean(_message_of(response.text)),
            retry_after=_retry_after(response.headers.get("retry-after")),
        )

    def _answer(self, response: httpx2.Response) -> Reply:
        what = "the server's reply is not JSON"
        try:
            reply = json.loads(response.content)
            what = "the server's reply has no answer in it"
            choice = reply["choices"][0]
            text = _text(choice["message"]["content"])
            finish_reason = str(choice.get("finish_reason") or "")
            usage = _usage(reply.get("usage"))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise self._no_answer(what, response) from error
        if finish_reason in {"abort", "error"}:
            what = "the server gave the page up"
            raise self._no_answer(what, response)
        return Reply(text, finish_reason, usage)

    def _no_answer(self, what: str, response: httpx2.Response) -> Fault:
        message = self._clean(_message_of(response.text))
        return Fault(what, status_code=200, server_message=message, no_answer=True)

    def _clean(self, text: str) -> str:
        if self._secret:
            text = text.replace(self._secret, "***")
        text = " ".join(text.split())
        return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"


class _Client(openai.AsyncOpenAI):
    """The OpenAI client, saying only what concerns this server.

    Its own default headers hold the organisation, project and headers that the environment has
    for OpenAI, and a description of this machine.
    """

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        """Give the headers of every request; the key is added by the client itself."""
        return {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": "deepseek-ocr-loaders",
        }


def _text(content: object) -> str:
    if isinstance(content, list):  # some gateways send the text in parts
        content = "".join(part.get("text") or "" for part in content)
    if not isinstance(content, str | None):
        raise TypeError(type(content))
    return content or ""


def _usage(found: Any) -> Usage:
    counts = found if isinstance(found, dict) else {}
    return Usage(int(counts.get("prompt_tokens") or 0), int(counts.get("completion_tokens") or 0))


def _message_of(text: str) -> str:
    """Give the words of an error reply: OpenAI's shape, vLLM's old and new one, FastAPI's."""
    try:
        reply = json.loads(text)
    except ValueError:
        return text
    for name in ("error", "message", "detail"):
        if isinstance(reply, dict) and reply.get(name):
            reply = reply[name]
    if isinstance(reply, str):
        return reply
    return "" if isinstance(reply, dict) and "choices" in reply else json.dumps(reply)


def _retry_after(value: str | None) -> float | None:
    """Give the seconds of a `Retry-After` header, which holds seconds or a date (RFC 9110)."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
