"""What a server that someone else runs is, and which model it serves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.endpoint import Endpoint
from deepseek_ocr_loaders.errors import (
    AuthenticationError,
    ModelNotFoundError,
    ServerUnreachableError,
)
from deepseek_ocr_loaders.http import is_loopback, tls
from deepseek_ocr_loaders.server.probe import Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import SecretStr

__all__ = ["discover", "is_alive", "metrics"]

CONNECT_TIMEOUT = 10.0


async def _get(url: str, key: SecretStr | None, seconds: float) -> tuple[int, object]:
    """Give status and JSON body (None where it is none)."""
    status, text = await _get_text(url, key, seconds)
    try:
        return status, json.loads(text)
    except ValueError:
        return status, None


async def _get_text(url: str, key: SecretStr | None, seconds: float) -> tuple[int, str]:
    import httpx2  # noqa: PLC0415 - 0.2 s that a managed server does not need

    headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    limits = httpx2.Timeout(seconds, connect=min(CONNECT_TIMEOUT, seconds))
    async with httpx2.AsyncClient(
        verify=tls(), timeout=limits, trust_env=not is_loopback(url), follow_redirects=False
    ) as client:
        try:
            reply = await client.get(url, headers=headers)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
    return reply.status_code, reply.text


async def discover(
    base_url: str,
    *,
    api_key: SecretStr | None,
    model: str | None,
    timeout: float = 30.0,  # noqa: ASYNC109
) -> Endpoint:
    """Ask a server what it serves.

    Args:
        base_url: Its address up to and including `/v1`.
        api_key: Sent as a bearer token.
        model: The id that is wanted; None takes the only one there is.
        timeout: Seconds for each question.

    Raises:
        ServerUnreachableError: Nothing answers there, or something that is no such server.
        AuthenticationError: It wants another key.
        ModelNotFoundError: It does not serve that model, or several and none was named.
    """
    base_url = base_url.rstrip("/")
    try:
        status, body = await _get(f"{base_url}/models", api_key, timeout)
    except ConnectionError as error:
        msg = (
            f"no server answers at {base_url} ({error}). Check that it runs, and that the address "
            "and port are right; a server in a container must publish its port."
        )
        raise ServerUnreachableError(msg, base_url=base_url) from error
    if status in {401, 403}:
        given = "the key that was given is refused" if api_key else "no key was given"
        msg = (
            f"the server at {base_url} wants another key ({status}): {given}. Pass api_key=... or "
            "set DEEPSEEK_OCR_API_KEY. (/health needs no key, /v1/models does, so a server may "
            "look healthy and refuse all the same.)"
        )
        raise AuthenticationError(msg, status_code=status)
    served = Model.parse_all(body)
    if status != 200 or (not served and not _is_listing(body)):
        msg = (
            f"what answers at {base_url} is no OpenAI-compatible server: {base_url}/models gives "
            f"status {status}. The address should end in /v1."
        )
        raise ServerUnreachableError(msg, base_url=base_url, status_code=status)
    found = _choose(served, model, base_url)
    return Endpoint(
        base_url=base_url,
        model=found.id,
        engine=found.owned_by or "unknown",
        reader=found.reader,
        version=await _version(base_url, api_key, timeout),
        max_model_len=found.max_model_len,
        max_concurrency=found.max_num_seqs,
        api_key=api_key,
    )


def _is_listing(body: object) -> bool:
    return isinstance(body, dict) and isinstance(body.get("data"), list)


def _choose(served: Sequence[Model], wanted: str | None, base_url: str) -> Model:
    names = ", ".join(model.id for model in served)
    if wanted is None:
        if len(served) == 1:
            return served[0]
        msg = (
            f"the server at {base_url} serves several models, name one with model=...: {names}"
            if served
            else f"the server at {base_url} serves no model (yet): wait until it has loaded one"
        )
        raise ModelNotFoundError(msg, status_code=None, served=[model.id for model in served])
    for model in served:
        if model.id == wanted:
            return model
    near = [model.id for model in served if model.id.lower() == wanted.lower()]
    msg = f"the server at {base_url} does not serve {wanted!r}; it serves: {names or 'nothing'}"
    if near:
        msg += f". Upper and lower case count: did you mean {near[0]!r}?"
    raise ModelNotFoundError(msg, status_code=None, served=[model.id for model in served])


async def _version(base_url: str, key: SecretStr | None, seconds: float) -> str | None:
    try:
        status, body = await _get(f"{base_url.removesuffix('/v1')}/version", key, seconds)
    except ConnectionError:
        return None
    value = body.get("version") if status == 200 and isinstance(body, dict) else None
    return value if isinstance(value, str) else None


async def is_alive(endpoint: Endpoint, *, seconds: float = 5.0) -> bool:
    """Say whether a server answers and calls itself healthy."""
    try:
        status, _ = await _get(f"{endpoint.base_url.removesuffix('/v1')}/health", None, seconds)
        if status == 404:
            # Not every server that speaks the protocol has /health.
            status, _ = await _get(f"{endpoint.base_url}/models", endpoint.api_key, seconds)
    except ConnectionError:
        return False
    return status == 200


async def metrics(endpoint: Endpoint, *, seconds: float = 5.0) -> str:
    """Give what `/metrics` says; empty where there is no such thing."""
    url = f"{endpoint.base_url.removesuffix('/v1')}/metrics"
    try:
        status, text = await _get_text(url, endpoint.api_key, seconds)
    except ConnectionError:
        return ""
    return text if status == 200 else ""
