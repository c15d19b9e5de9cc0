"""What is tried when an answer loops, is cut or is empty, and what is kept of it."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageDraw
from support.fault_server import (
    FakeProvider,
    FaultServer,
    answer,
    die,
    loop,
    marked_picture,
    reset,
    status,
)
from support.reading import INFO, pairing, read_all, read_one, reader

from deepseek_ocr_loaders import ladder, retry
from deepseek_ocr_loaders.errors import AuthenticationError
from deepseek_ocr_loaders.page import Box, PageStatus, Picture, SourceInfo

if TYPE_CHECKING:
    from support.fault_server import ChatRequest, Step

GOOD = "<|ref|>text<|/ref|><|det|>[[40, 61, 900, 400]]<|/det|>\nAll of the page.  \n\n"


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_backoff", lambda _state: 0.01)


def _method(request: ChatRequest) -> str:
    if Image.open(io.BytesIO(request.pictures[0])).height < 156:
        return "halves"
    if request.body["temperature"] > 0:
        return "sampling"
    return "ngram" if "vllm_xargs" in request.body else "plain"


def _methods(server: FaultServer) -> list[str]:
    return [_method(request) for request in server.requests]


FAULTS = {
    "loop": loop(),
    "loop that the server ended": answer("Intro\n" + "Ward office\n" * 120, "repetition"),
    "one letter": answer("-" * 8000, "length"),
    "cells": answer("<table><tr>" + "<td></td>" * 3000, "length"),
    "cut in a table": answer("Body\n\n<table><tr><td>Name</td><td>Qt", "length"),
    "cut in a tag": answer("Body\n<|ref|>text<|/ref|><|det|>[[10, 9", "length"),
    "empty": answer(""),
    "only an end": answer("<｜end▁of▁sentence｜>"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_fault_07_09_10_a_bad_answer_is_cured_by_the_next_means(fault: Step) -> None:
    with FaultServer(lambda r: fault if _method(r) == "plain" else answer(GOOD)) as server:
        result = await read_one(server)
    assert _methods(server) == ["plain", "ngram"]
    assert result.status is PageStatus.OK
    assert [block.text for block in result.blocks] == ["All of the page."]
    assert [attempt.method for attempt in result.attempts] == ["plain", "ngram"]
    assert [attempt.outcome is PageStatus.OK for attempt in result.attempts] == [False, True]
    assert result.usage == result.attempts[0].usage + result.attempts[1].usage


async def test_fault_07_the_order_is_fixed_and_ends() -> None:
    with FaultServer(lambda _r: loop()) as server:
        result = await read_one(server)
    assert _methods(server) == ["plain", "ngram", "sampling", "halves", "halves"]
    assert [attempt.method for attempt in result.attempts] == [
        "plain",
        "ngram",
        "sampling",
        "halves",
    ]
    assert [attempt.requests for attempt in result.attempts] == [1, 1, 1, 2]
    assert result.status is PageStatus.REPETITION
    text = "\n".join(block.text for block in result.blocks)
    assert text.startswith("Intro")
    assert text.count("Ward office") <= 4


async def test_fault_08_the_limits_are_sent_as_numbers() -> None:
    with FaultServer(lambda _r: answer("")) as server:
        await read_one(server)
        image = SourceInfo("a.png", "a.png", "0" * 64, "image", 1)
        async with reader(server) as open_reader:
            await open_reader.read(image, 0, "1", marked_picture(0))
    pdf, picture = server.requests[1].body, server.requests[6].body
    cells = [128821, 128822]
    assert pdf["vllm_xargs"] == {
        "ngram_size": 20,
        "window_size": 50,
        "whitelist_token_ids": cells,
    }
    assert picture["vllm_xargs"] == {
        "ngram_size": 30,
        "window_size": 90,
        "whitelist_token_ids": cells,
    }
    assert pdf["temperature"] == 0
    sampled = server.requests[2].body
    assert (sampled["temperature"], sampled["top_p"], sampled["seed"]) == (0.6, 0.95, 0)
    assert sampled["vllm_xargs"] == pdf["vllm_xargs"]


async def test_fault_08_limits_without_effect_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with FaultServer(lambda _r: loop()) as server:
        await read_all(server, 3)
    assert sum("had no effect" in record.message for record in caplog.records) == 1


async def test_the_best_answer_is_kept() -> None:
    texts = {
        "plain": answer("A few words.", "length"),
        "ngram": answer("Many more words than that were on the page.", "length"),
        "sampling": answer(""),
        "halves": answer(""),
    }
    with FaultServer(lambda r: texts[_method(r)]) as server:
        result = await read_one(server)
    assert result.status is PageStatus.TRUNCATED
    assert result.raw == "Many more words than that were on the page."


async def test_fault_10_ink_decides_what_an_empty_answer_means() -> None:
    white = Picture(marked_picture(0).data, "image/png", 104, 156, has_ink=False)
    with FaultServer(lambda _r: answer("")) as server:
        async with reader(server) as open_reader:
            result = await open_reader.read(INFO, 0, "1", white)
            assert len(server.requests) == 1
            assert result.status is PageStatus.OK
            result = await open_reader.read(INFO, 0, "1", marked_picture(0))
    assert result.status is PageStatus.EMPTY


async def test_honest_repetition_is_not_tried_again() -> None:
    rows = "<table>" + "<tr><td>Monday</td><td>Closed</td></tr>" * 31 + "</table>"
    with FaultServer(lambda _r: answer(rows)) as server:
        result = await read_one(server, prompt="free")
    assert len(server.requests) == 1
    assert result.raw == rows
    assert result.status is PageStatus.OK


async def test_a_fault_on_the_way_up_keeps_what_there_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def script(request: ChatRequest) -> Step:
        return loop() if _method(request) == "plain" else status(500)

    with FaultServer(script) as server:
        result = await read_one(server, retries=1)
    assert result.status is PageStatus.REPETITION
    assert [(a.method, a.outcome, a.requests) for a in result.attempts] == [
        ("plain", PageStatus.REPETITION, 1),
        ("ngram", PageStatus.FAILED, 2),
    ]
    assert any(record.levelno >= logging.WARNING for record in caplog.records)


async def test_a_page_that_kills_on_the_way_up_keeps_what_there_is() -> None:
    with FaultServer(lambda r: loop() if _method(r) == "plain" else die()) as server:
        result = await read_one(FakeProvider(server, restarts=9))
    assert result.status is PageStatus.REPETITION


async def test_a_fault_of_the_whole_run_on_the_way_up_ends_it() -> None:
    def script(request: ChatRequest) -> Step:
        return loop() if _method(request) == "plain" else status(401)

    with FaultServer(script) as server, pytest.raises(AuthenticationError):
        await read_one(server)


async def test_each_try_has_its_own_retries() -> None:
    script = [reset(), loop(), reset(), None]
    with FaultServer(script) as server:
        result = await read_one(server, retries=1)
    assert [attempt.requests for attempt in result.attempts] == [2, 2]
    assert pairing([result]) == [0]


@pytest.mark.parametrize(
    ("prompt", "engine", "methods"),
    [
        ("markdown", "vllm", ["plain", "ngram", "sampling", "halves", "halves"]),
        ("ocr", "vllm", ["plain", "ngram", "sampling", "halves", "halves"]),
        ("free", "vllm", ["plain", "ngram", "sampling", "halves", "halves"]),
        ("figure", "vllm", ["plain", "ngram", "sampling"]),
        ("describe", "vllm", ["plain", "ngram", "sampling"]),
        ("Locate <|ref|>Total<|/ref|> in the image.", "vllm", ["plain", "ngram", "sampling"]),
        ("markdown", "rapidocr", ["plain"]),
    ],
)
async def test_only_what_fits_is_tried(prompt: str, engine: str, methods: list[str]) -> None:
    with FaultServer(lambda _r: answer("", "length")) as server:
        await read_one(FakeProvider(server, engine=engine), prompt=prompt)
    assert _methods(server) == methods


# --- halves ---------------------------------------------------------------------------------


async def test_fault_09_a_dense_page_is_read_in_halves() -> None:
    """Boxes refer to the whole page; the text of each half is there once, in order."""

    def script(request: ChatRequest) -> Step:
        if _method(request) != "halves":
            return answer("<|ref|>text<|/ref|><|det|>[[0, 0, 999, 999]]<|/det|>\nOnly", "length")
        sent = Image.open(io.BytesIO(request.pictures[0]))
        name = "upper" if not halves_seen else "lower"
        halves_seen.append(sent.height)
        return answer(f"<|ref|>text<|/ref|><|det|>[[0, 0, 999, 999]]<|/det|>\nThe {name} half.")

    halves_seen: list[int] = []
    with FaultServer(script) as server:
        result = await read_one(server)
    assert result.status is PageStatus.OK
    assert [block.text for block in result.blocks] == ["The upper half.", "The lower half."]
    assert sum(halves_seen) == 156  # cut in the white between the bars, nothing twice
    upper, lower = (block.boxes[0] for block in result.blocks)
    edge = round(halves_seen[0] * 999 / 156)
    assert (upper, lower) == (Box(0, 0, 999, edge), Box(0, edge, 999, 999))
    assert "upper" in result.raw
    assert "lower" in result.raw
    assert all(request.marker == 0 for request in server.requests)


async def test_a_half_that_loops_makes_the_page_loop() -> None:
    def script(request: ChatRequest) -> Step:
        if _method(request) == "halves" and len(server.requests) == 4:
            return answer("The upper half, whole and long enough to be the best of all answers.")
        return loop()

    with FaultServer(script) as server:
        result = await read_one(server, prompt="free")
    assert result.status is PageStatus.REPETITION
    assert result.blocks[0].text.startswith("The upper half")


async def test_a_half_without_ink_is_not_sent() -> None:
    image = Image.new("L", (200, 400), 255)
    ImageDraw.Draw(image).rectangle((20, 20, 180, 100), fill=0)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    picture = Picture(stream.getvalue(), "image/png", 200, 400)
    with FaultServer(
        lambda r: answer("Upper.") if r.index == 3 else answer("", "length")
    ) as server:
        async with reader(server, prompt="free") as open_reader:
            result = await open_reader.read(INFO, 0, "1", picture)
    assert len(server.requests) == 4
    assert result.status is PageStatus.OK
    assert [block.text for block in result.blocks] == ["Upper."]


def test_the_documented_order() -> None:
    with FaultServer() as server:
        endpoint = server.endpoint()
    assert ladder.methods(endpoint, "Free OCR.") == ("plain", "ngram", "sampling", "halves")
