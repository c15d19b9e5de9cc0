"""What is sent to a real vLLM, and what comes back: the real architecture on a CPU, no weights."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise
from typing import TYPE_CHECKING

import pymupdf
import pytest

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRReader, DeepSeekOCRServer, ladder
from deepseek_ocr_loaders.client import Fault, PageClient, PageRequest, Reply
from deepseek_ocr_loaders.page import Picture
from deepseek_ocr_loaders.prompts import PROMPTS
from deepseek_ocr_loaders.server.control import stop_all
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

IMAGE_TOKENS = 273
"""Of a picture up to 640 × 640: the global view only."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeepSeekOCRServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEEPSEEK_OCR_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        patch.setenv("DEEPSEEK_OCR_VLLM", os.environ["DEEPSEEK_OCR_TEST_VLLM"])
        given = DeepSeekOCRServer(
            engine="vllm",
            model=os.environ["DEEPSEEK_OCR_TEST_MODEL"],
            extra_args=[
                *("--load-format", "dummy", "--enforce-eager", "--max-num-seqs", "4"),
                # Noise does not end by itself: without a limit each answer has 8,000 tokens.
                *("--max-model-len", "1024"),
                # Without AVX-512 bfloat16 is emulated, and the picture takes minutes.
                *("--dtype", "float32"),
            ],
            env={
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "HF_HUB_OFFLINE": "1",
                # The default of 300 s is not enough for a busy machine.
                "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1200",
            },
        )
        with given:
            yield given
        stop_all()


@pytest.fixture(scope="module")
def pdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "small.pdf"
    with pymupdf.open() as document:
        page = document.new_page(width=300, height=200)
        page.insert_text((30, 80), "Harbour lights", fontsize=24)
        document.save(path)
    return path


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


@pytest.mark.long
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


@pytest.mark.long
def test_the_reader_gives_the_same_text(server: DeepSeekOCRServer, pdf: Path) -> None:
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


@pytest.mark.long
def test_a_loop_is_stopped_by_the_server(server: DeepSeekOCRServer, picture: Picture) -> None:
    fields = ladder.fields(ladder.PLAIN, server.endpoint, "pdf")
    assert set(fields) == {"repetition_detection"}
    detection = {**fields["repetition_detection"], "min_count": 4}
    reply = ask(server, picture, repetition_detection=detection, max_tokens=400)
    assert reply.finish_reason == "repetition"


@pytest.mark.long
def test_ngram_limits_are_obeyed(server: DeepSeekOCRServer, picture: Picture) -> None:
    limits = ladder.fields(ladder.NGRAM, server.endpoint, "pdf")["vllm_xargs"]
    free = ask(server, picture, max_tokens=40)
    tokens = free.text.split()
    assert any(one == other for one, other in pairwise(tokens)), "the noise does not repeat itself"
    limited = ask(
        server, picture, max_tokens=40, vllm_xargs={**limits, "ngram_size": 2, "window_size": 60}
    )
    assert limited.usage.completion_tokens == 40
    assert limited.text != free.text


def test_a_broken_picture_is_refused(server: DeepSeekOCRServer) -> None:
    broken = Picture(b"\x89PNG\r\n\x1a\nno picture", "image/png", 10, 10)
    with pytest.raises(Fault) as caught:
        ask(server, broken)
    assert caught.value.status_code == 400
    assert not caught.value.heals
