"""What is sent to a real vLLM, and what comes back: the real architecture on a CPU, no weights."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support import vllm

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRReader, ladder
from deepseek_ocr_loaders.client import Fault, PageClient, PageRequest, Reply
from deepseek_ocr_loaders.page import Picture
from deepseek_ocr_loaders.prompts import PROMPTS
from deepseek_ocr_loaders.server.control import stop_all
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deepseek_ocr_loaders import DeepSeekOCRServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

IMAGE_TOKENS = 273
"""Of a picture up to 640 × 640: the global view only."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeepSeekOCRServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEEPSEEK_OCR_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        patch.setenv("DEEPSEEK_OCR_VLLM", vllm.executable())
        given = vllm.make_server()
        with given:
            yield given
        stop_all()


@pytest.fixture(scope="module")
def pdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vllm.small_pdf(tmp_path_factory.mktemp("pages") / "small.pdf")


@pytest.fixture(scope="module")
def picture(pdf: Path) -> Picture:
    with open_source(pdf, settings=Settings(detail="low")) as source:
        return source.picture(0)


def ask(server: DeepSeekOCRServer, picture: Picture, **fields: object) -> Reply:
    async def send() -> Reply:
        client = PageClient(server.endpoint, connections=1)
        try:
            request = PageRequest(picture, PROMPTS["markdown"], fields)
            return await client.send(request.body(server.model, {}))
        finally:
            await client.aclose()

    return asyncio.run(send())


def test_a_page_through_the_loader(server: DeepSeekOCRServer, pdf: Path) -> None:
    loader = DeepSeekOCRLoader(pdf, server=server, detail="low")
    (document,) = loader.load()
    assert document.metadata["ocr_engine"] == "vllm"
    assert document.metadata["ocr_model"] == server.model
    (page,) = loader.report.pages
    # Noise: whatever the page ended as, the server counted its tokens and said why it ended.
    first = page.attempts[0]
    assert first.method == ladder.PLAIN
    assert first.finish_reason in {"stop", "length", "repetition"}
    words = 11  # begin of sentence, newline and the words of the prompt, within two
    assert abs(first.usage.prompt_tokens - IMAGE_TOKENS - words) <= 2
    assert first.usage.completion_tokens > 0
    # Noise repeats itself, so the other ways of asking were tried, and none of them was refused.
    for attempt in page.attempts:
        assert attempt.requests <= 2
        assert attempt.outcome != "failed"


def test_the_reader_gives_the_same_text(
    server: DeepSeekOCRServer, pdf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Noise asks for all ways of the ladder; one is enough to compare.
    monkeypatch.setattr(ladder, "methods", lambda *_: (ladder.PLAIN,))
    options = {"server": server, "detail": "low"}
    (from_loader,) = DeepSeekOCRLoader(pdf, **options).load()
    (from_reader,) = DeepSeekOCRReader(**options).load_data(pdf)
    assert from_reader.text == from_loader.page_content
    assert from_reader.metadata["ocr_status"] == from_loader.metadata["ocr_status"]


def test_usage_and_finish_reason_at_the_token_limit(
    server: DeepSeekOCRServer, picture: Picture
) -> None:
    reply = ask(server, picture, max_tokens=7)
    assert reply.finish_reason == "length"
    assert reply.usage.completion_tokens == 7


def test_a_loop_is_stopped_by_the_server(server: DeepSeekOCRServer, picture: Picture) -> None:
    fields = ladder.fields(ladder.PLAIN, server.endpoint, "pdf")
    assert set(fields) == {"repetition_detection"}
    detection = {**fields["repetition_detection"], "min_count": 4}
    reply = ask(server, picture, repetition_detection=detection, max_tokens=200)
    assert reply.finish_reason == "repetition"


def test_ngram_limits_are_obeyed(server: DeepSeekOCRServer, picture: Picture) -> None:
    limits = ladder.fields(ladder.NGRAM, server.endpoint, "pdf")["vllm_xargs"]
    free = ask(server, picture, max_tokens=40)
    assert ask(server, picture, max_tokens=40).text == free.text, "the noise is not the same twice"
    limited = ask(
        server, picture, max_tokens=40, vllm_xargs={**limits, "ngram_size": 2, "window_size": 60}
    )
    assert limited.usage.completion_tokens == 40
    # Noise repeats itself; forbidden to do so, it must find other words.
    assert len(set(limited.text)) > 2 * len(set(free.text))


def test_a_broken_picture_is_refused(server: DeepSeekOCRServer) -> None:
    broken = Picture(b"\x89PNG\r\n\x1a\nno picture", "image/png", 10, 10)
    with pytest.raises(Fault) as caught:
        ask(server, broken)
    assert caught.value.status_code == 400
    assert not caught.value.heals
