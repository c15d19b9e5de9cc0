"""A client that only sends: no retries, no drawing, no Documents; what the loaders are held to."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import dataclass, field
from itertools import cycle, islice, zip_longest
from typing import TYPE_CHECKING, Any

import httpx2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepseek_ocr_loaders.page import Picture

PROMPT = "<|grounding|>Convert the document to markdown."
OFFICIAL = {
    "vllm_xargs": {"ngram_size": 30, "window_size": 90, "whitelist_token_ids": [128821, 128822]}
}
"""What DeepSeek's recipe adds to a request."""


def fixed_length(tokens: int) -> dict[str, Any]:
    """Give the fields that make every answer exactly so long."""
    return {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}


@dataclass
class Load:
    """What came of a run.

    Attributes:
        seconds: Wall time from the first request to the last answer.
        latencies: Seconds of each request.
        prompt_tokens: Of all pages.
        completion_tokens: Of all pages.
        cpu_seconds: Of this process, in that time.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cpu_seconds: float = 0.0


def bodies(pictures: Sequence[Picture], model: str, fields: dict[str, Any]) -> list[bytes]:
    """Give one request for each picture."""
    made = []
    for picture in pictures:
        address = f"data:{picture.media_type};base64," + base64.b64encode(picture.data).decode()
        content = [
            {"type": "image_url", "image_url": {"url": address}},
            {"type": "text", "text": PROMPT},
        ]
        request = {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "skip_special_tokens": False,
            **fields,
        }
        made.append(json.dumps(request).encode())
    return made


def send(
    base_urls: Sequence[str],
    requests: Sequence[bytes],
    *,
    pages: int,
    concurrency: int,
    api_keys: Sequence[str] = (),
) -> Load:
    """Send `pages` requests, so many at once, to the addresses in turn, each with its key."""
    places = list(zip_longest(base_urls, api_keys, fillvalue=""))
    return asyncio.run(_send(places, requests, pages, concurrency))


async def _send(
    places: Sequence[tuple[str, str]], requests: Sequence[bytes], pages: int, concurrency: int
) -> Load:
    load = Load()
    work = zip(islice(cycle(requests), pages), cycle(places), strict=False)
    headers = {"content-type": "application/json"}
    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx2.AsyncClient(
        timeout=None, limits=limits, headers=headers, trust_env=False
    ) as client:

        async def one_after_the_other() -> None:
            for body, (base_url, key) in work:
                started = time.perf_counter()
                sent = {"authorization": f"Bearer {key}"} if key else {}
                response = await client.post(
                    f"{base_url}/chat/completions", content=body, headers=sent
                )
                load.latencies.append(time.perf_counter() - started)
                if response.status_code != 200:
                    msg = f"{response.status_code}: {response.text[:500]}"
                    raise RuntimeError(msg)
                usage = response.json()["usage"]
                load.prompt_tokens += usage["prompt_tokens"]
                load.completion_tokens += usage["completion_tokens"]

        cpu, started = time.process_time(), time.perf_counter()
        await asyncio.gather(*(one_after_the_other() for _ in range(concurrency)))
        load.seconds = time.perf_counter() - started
        load.cpu_seconds = time.process_time() - cpu
    return load
