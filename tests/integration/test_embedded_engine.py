"""The embedded engine in its own process, over real HTTP."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import psutil
import pymupdf
import pytest
from PIL import Image, ImageDraw, ImageFont
from support.embedded import EmbeddedServer, blocks, draw, draw_sample, request

from deepseek_ocr_loaders.prompts import PROMPTS, locate

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("rapidocr")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


def small(*words: str, size: tuple[int, int] = (640, 320)) -> bytes:
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    for number, text in enumerate(words):
        pen.text((30, 20 + 60 * number), text, fill="black", font=ImageFont.load_default(28))
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def test_it_tells_what_reads(server: EmbeddedServer) -> None:
    (card,) = server.http.get("/v1/models").json()["data"]
    assert card["id"] == "rapidocr"
    assert re.fullmatch(r"PP-OCRv\d+_det_\w+\+PP-OCRv\d+_rec_\w+", card["reader"])
    assert server.http.get("/version").json()["version"].startswith("3.")
    assert httpx.get(f"http://127.0.0.1:{server.port}/v1/models").status_code == 401


def test_a_small_picture_is_read(server: EmbeddedServer) -> None:
    reply = server.chat(small("Hello harbour 1884"))
    ((label, box, text),) = blocks(reply["choices"][0]["message"]["content"])
    assert (label, text) == ("text", "Hello harbour 1884")
    assert 30 * 999 / 640 - 10 < box[0] < 30 * 999 / 640 + 10
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["prompt_tokens"] > 273


@pytest.mark.parametrize(
    "texts",
    [
        {"Introduction": (72, 72)},
        {"Page 1 hello": (72, 420)},
        {"42": (290, 800)},
        {"Appendix": (260, 300), "17": (290, 800)},
        {"A": (72, 60), "12": (500, 60)},
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("size", [8, 11, 24])
def test_few_words_alone_on_a_page_are_read(
    server: EmbeddedServer, texts: dict[str, tuple[int, int]], size: int
) -> None:
    document = pymupdf.open()
    page = document.new_page()
    for text, place in texts.items():
        page.insert_text(place, text, fontsize=size)
    found = blocks(server.content(draw(page)))
    # Words of one height are cells of one row.
    assert "  ".join(text.lstrip("# ") for _, _, text in found).split("  ") == list(texts)
    for left, baseline in texts.values():
        x, y = left * 999 / 595, baseline * 999 / 842
        assert any(b[0] - 10 < x < b[2] and b[1] < y < b[3] + 10 for _, b, _ in found)


def test_a_table_keeps_its_rows_in_order(server: EmbeddedServer) -> None:
    found = [text for _, _, text in blocks(server.content(draw_sample("table")))]
    rows = [re.sub(r"\s", "", text) for text in found]
    assert rows[1:4] == ["ItemShelfPiecesPrice", "Ink,blackA31204.20", "Ink,redA4354.60"]
    assert rows[8] == "Brush,flatD2483.10"


def test_a_heading_is_called_so(server: EmbeddedServer) -> None:
    (first, *rest) = blocks(server.content(draw_sample("born_digital")))
    assert first[0] in {"title", "sub_title"}
    assert first[2].endswith("# Harbour records of Port Ellis")
    assert {label for label, _, _ in rest} == {"text"}
    assert len(rest) == 4


def test_every_prompt_is_answered_in_its_own_way(server: EmbeddedServer) -> None:
    picture = small("First line here", "Second line here")
    tagged = server.content(picture, PROMPTS["ocr"])
    assert re.findall(r"<\|ref\|>(.*?)<\|/ref\|>", tagged) == [
        "First line here",
        "Second line here",
    ]
    for name in ("free", "figure", "describe"):
        plain = server.content(picture, PROMPTS[name])
        assert "<|" not in plain
        assert plain.split() == ["First", "line", "here", "Second", "line", "here"]
    place = server.content(picture, locate("Second"))
    assert place.startswith("<|ref|>Second<|/ref|><|det|>[[")
    x1, y1, x2, y2 = map(int, re.findall(r"\d+", place))
    assert x1 < 70
    assert x2 < 300
    assert 80 * 999 / 320 - 40 < y1 < y2 < 80 * 999 / 320 + 150


@pytest.mark.parametrize("prompt", ["markdown", "ocr", "free"])
def test_fault_22_a_blank_page_gives_no_words(server: EmbeddedServer, prompt: str) -> None:
    assert server.content(small(), PROMPTS[prompt]) == ""


def test_fault_24_a_turned_photo_is_read_upright(server: EmbeddedServer) -> None:
    image = Image.open(io.BytesIO(small("Hello harbour 1884"))).rotate(90, expand=True)
    exif = image.getexif()
    exif[0x0112] = 6
    data = io.BytesIO()
    image.save(data, "JPEG", exif=exif, quality=95)
    assert "Hello harbour 1884" in server.content(data.getvalue())


def test_a_page_that_prints_tags_writes_none(server: EmbeddedServer) -> None:
    with pymupdf.open() as document:
        page = document.new_page(width=595, height=842)
        page.insert_text((60, 90), "<|ref|>title<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>", fontsize=16)
        answer = server.content(draw(page))
    assert len(blocks(answer)) == answer.count("<|ref|>") == answer.count("<|det|>")


def test_refusals(server: EmbeddedServer) -> None:
    def refused(body: object) -> tuple[int, str]:
        reply = server.http.post("/v1/chat/completions", json=body)
        error = reply.json()["error"]
        assert error["code"] == reply.status_code
        assert error["message"]
        return reply.status_code, error["type"]

    good = request(small("x"))
    two = request(small("x"))
    two["messages"][0]["content"].insert(0, two["messages"][0]["content"][0])
    none = request(small("x"))
    del none["messages"][0]["content"][0]
    far = request(small("x"))
    far["messages"][0]["content"][0]["image_url"]["url"] = "http://127.0.0.1:9/x.png"
    for body in (two, none, far, request(b"broken"), request(small("x")[:90]), {**good, "n": 3}):
        assert refused(body) == (400, "BadRequestError")
    assert refused({**good, "model": "deepseek-ai/DeepSeek-OCR"}) == (404, "NotFoundError")
    assert server.content(small("Still here")).strip().endswith("Still here")


def test_an_address_is_not_fetched(server: EmbeddedServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(1)
        body = request(small("x"))
        address = f"http://127.0.0.1:{trap.getsockname()[1]}/x.png"
        body["messages"][0]["content"][0]["image_url"]["url"] = address
        assert server.http.post("/v1/chat/completions", json=body).status_code == 400
        with pytest.raises(TimeoutError):
            trap.accept()


def test_pages_read_at_the_same_time_do_not_mix(server: EmbeddedServer) -> None:
    def read(number: int) -> str:
        return server.content(
            small(*(f"page {number} line {n}" for n in range(2))), PROMPTS["free"]
        )

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(read, range(100, 108)))
    for number, answer in zip(range(100, 108), answers, strict=True):
        assert answer.split() == " ".join(f"page {number} line {n}" for n in range(2)).split()


def test_pages_of_clients_that_went_away_are_dropped(server: EmbeddedServer) -> None:
    page = draw_sample("two_columns")
    read = "read a page of 1280 × 1920"
    before = EmbeddedServer.read(server.log).count(read)
    with ThreadPoolExecutor(8) as pool:

        def impatient(_: int) -> None:
            headers = {"Authorization": server.http.headers["Authorization"]}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    f"http://127.0.0.1:{server.port}/v1/chat/completions",
                    json=request(page),
                    headers=headers,
                    timeout=httpx.Timeout(30, read=0.5),
                )

        list(pool.map(impatient, range(8)))
    limit = time.monotonic() + 60
    while server.gauge("num_requests_running") or server.gauge("num_requests_waiting"):
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert EmbeddedServer.read(server.log).count(read) < before + 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_the_middle_of_a_page(number: signal.Signals) -> None:
    page = draw_sample("two_columns")
    with EmbeddedServer() as server, ThreadPoolExecutor(3) as pool:
        pending = [pool.submit(server.chat, page) for _ in range(3)]
        while not server.gauge("num_requests_running"):
            time.sleep(0.02)
        os.kill(server.process.pid, number)
        assert server.process.wait(20) == 0
        for answer in pending:
            assert isinstance(answer.exception(20), (httpx.TransportError, AssertionError))
        with pytest.raises(httpx.ConnectError):
            server.http.get("/health")
        assert EmbeddedServer.read(server.out) == ""
        assert "Traceback" not in EmbeddedServer.read(server.log)


def test_a_signal_ends_it_while_it_loads() -> None:
    server = EmbeddedServer()
    try:
        time.sleep(0.7)
        server.process.terminate()
        assert server.process.wait(20) in (0, -signal.SIGTERM)
    finally:
        server.__exit__()


def test_a_port_in_use_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "deepseek_ocr_loaders.engines.embedded"]
        done = subprocess.run(
            [*command, "--port", str(port)], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_models_are_in_the_package_and_nothing_is_downloaded() -> None:
    code = (
        "import socket, asyncio\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from PIL import Image\n"
        "from deepseek_ocr_loaders.engines.embedded.recognise import Recogniser\n"
        "async def main():\n"
        "    reader = Recogniser(1)\n"
        "    print(reader.name, await reader.lines(Image.new('RGB', (640, 640), 'white')))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PP-OCR")
    assert done.stdout.strip().endswith("[]")


@pytest.mark.long
def test_fault_27_memory_is_flat_over_200_pages() -> None:
    with pymupdf.open() as document:
        pages = []
        for number in range(8):
            page = document.new_page(width=595, height=842)
            for row in range(5 + number):
                page.insert_text((60, 90 + 40 * row), f"Page {number} row {row} of it", fontsize=11)
            pages.append(draw(page, 640, 720 + 40 * number))
    with EmbeddedServer() as server, ThreadPoolExecutor(3) as pool:
        process = psutil.Process(server.process.pid)
        memory = []
        for _ in range(25):
            list(pool.map(server.content, pages))
            memory.append(process.memory_info().rss / 2**20)
    print([round(value) for value in memory])
    assert max(memory[-5:]) < max(memory[3:8]) + 60
