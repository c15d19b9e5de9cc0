from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from PIL import Image
from support.embedded import KEY, request

from deepseek_ocr_loaders.engines.embedded.recognise import Line
from deepseek_ocr_loaders.engines.embedded.request import MAX_BODY_BYTES

pytest.importorskip("starlette")

from deepseek_ocr_loaders.engines.embedded.app import create_app

if TYPE_CHECKING:
    from collections.abc import Callable

LINES = [Line("Hello harbour", 10, 10, 200, 40, 30), Line("and office", 10, 45, 150, 75, 30)]


class ScriptedReader:
    name = "PP-OCRtest_det+PP-OCRtest_rec"
    version = "9.9"
    threads = 2

    def __init__(self, before: Callable[[], Any] | None = None) -> None:
        self.before = before
        self.begun = self.cancelled = 0

    async def lines(self, image: Image.Image) -> list[Line]:
        assert image.mode == "RGB"
        self.begun += 1
        try:
            if self.before:
                await self.before()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return LINES


def client(reader: ScriptedReader | None = None, key: str | None = KEY) -> httpx.AsyncClient:
    app = create_app(reader or ScriptedReader(), model="rapidocr", api_key=key)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://server",
        headers={"Authorization": f"Bearer {KEY}"},
    )


def picture() -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (640, 480), "white").save(data, "PNG")
    return data.getvalue()


async def chat(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json=request(picture(), **fields))


async def test_health_version_and_metrics_need_no_key() -> None:
    async with client() as http:
        del http.headers["Authorization"]
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/version")).json() == {"version": "9.9"}
        metrics = (await http.get("/metrics")).text
        assert 'vllm:num_requests_running{engine="0",model_name="rapidocr"} 0.0' in metrics
        assert 'vllm:num_requests_waiting{engine="0",model_name="rapidocr"} 0.0' in metrics


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        KEY,
        f"Basic {KEY}",
        f"Bearer {KEY}x",
        "Bearer é",
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/nothing"])
async def test_everything_else_needs_the_key(header: str | None, path: str) -> None:
    async with client() as http:
        del http.headers["Authorization"]
        headers = {} if header is None else {"Authorization": header.encode()}
        reply = await http.request("POST" if "chat" in path else "GET", path, headers=headers)
    assert (reply.status_code, reply.json()) == (401, {"error": "Unauthorized"})


async def test_without_a_key_nothing_is_asked() -> None:
    async with client(key=None) as http:
        del http.headers["Authorization"]
        assert (await http.get("/v1/models")).status_code == 200


async def test_the_model_list_tells_who_reads() -> None:
    async with client() as http:
        listed = (await http.get("/v1/models")).json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert card["id"] == "rapidocr"
    assert card["owned_by"] == "rapidocr"
    assert card["object"] == "model"
    assert card["max_model_len"] == 8192
    assert card["reader"] == ScriptedReader.name
    assert card["max_num_seqs"] >= 1


async def test_a_page_is_answered_in_the_shape_of_openai() -> None:
    async with client() as http:
        reply = (await chat(http)).json()
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"].startswith("<|ref|>text<|/ref|><|det|>[[")
    assert "Hello harbour" in choice["message"]["content"]
    assert reply["object"] == "chat.completion"
    assert reply["model"] == "rapidocr"
    usage = reply["usage"]
    assert 273 < usage["prompt_tokens"] < 300
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_fault_09_an_answer_is_cut_at_the_token_limit_and_says_so() -> None:
    async with client() as http:
        whole = (await chat(http)).json()
        used = whole["usage"]["completion_tokens"]
        for limit in (1, 7, used - 1):
            cut = (await chat(http, max_tokens=limit)).json()
            assert cut["choices"][0]["finish_reason"] == "length"
            assert cut["usage"]["completion_tokens"] == limit
            content = cut["choices"][0]["message"]["content"]
            assert whole["choices"][0]["message"]["content"].startswith(content)
        enough = (await chat(http, max_completion_tokens=used)).json()
        assert enough["choices"][0]["finish_reason"] == "stop"


async def test_fault_06_without_the_field_special_tokens_are_gone() -> None:
    body = request(picture())
    del body["skip_special_tokens"]
    async with client() as http:
        reply = (await http.post("/v1/chat/completions", json=body)).json()
    assert reply["choices"][0]["message"]["content"].startswith("text[[")


async def test_refusals_have_the_shape_of_vllm() -> None:
    async with client() as http:
        wrong_model = await chat(http, model="other")
        assert wrong_model.status_code == 404
        assert wrong_model.json()["error"]["type"] == "NotFoundError"
        broken = await http.post("/v1/chat/completions", json=request(b"no picture"))
        assert broken.status_code == 400
        assert broken.json()["error"]["type"] == "BadRequestError"
        assert broken.json()["error"]["code"] == 400
        no_json = await http.post(
            "/v1/chat/completions", content=b"{", headers={"Content-Type": "application/json"}
        )
        assert no_json.status_code == 400
        other_type = await http.post("/v1/chat/completions", content=b"{}")
        assert other_type.status_code == 400
        assert (await http.get("/v1/nothing")).json()["error"]["code"] == 404
        assert (await http.get("/v1/chat/completions")).status_code == 405


async def test_a_body_that_is_too_long_is_refused_before_it_is_all_there() -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while sent < 4 * MAX_BODY_BYTES:
            sent += 4 * 1024 * 1024
            yield b"x" * (4 * 1024 * 1024)

    async with client() as http:
        reply = await http.post(
            "/v1/chat/completions", content=endless(), headers={"Content-Type": "application/json"}
        )
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == 413


async def test_a_fault_of_the_reader_is_a_500_that_tells_no_text() -> None:
    async def fail() -> None:
        msg = "secret words of the page"
        raise RuntimeError(msg)

    async with client(ScriptedReader(fail)) as http:
        reply = await chat(http)
        assert reply.status_code == 500
        assert reply.json()["error"]["type"] == "InternalServerError"
        assert "secret" not in reply.text
        # and the slot is free again
        assert "num_requests_running" in (await http.get("/metrics")).text
        assert " 1.0" not in (await http.get("/metrics")).text


async def test_pages_beyond_the_limit_wait_and_all_are_answered() -> None:
    gate = asyncio.Event()
    reader = ScriptedReader(gate.wait)
    async with client(reader) as http:
        tasks = [asyncio.create_task(chat(http)) for _ in range(5)]
        while reader.begun < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        metrics = (await http.get("/metrics")).text
        assert "num_requests_running{" in metrics
        assert [row.rsplit(" ", 1)[1] for row in metrics.splitlines() if row[0] != "#"] == [
            "2.0",
            "3.0",
        ]
        assert reader.begun == 2
        gate.set()
        assert [reply.status_code for reply in await asyncio.gather(*tasks)] == [200] * 5


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_client_that_goes_away_frees_its_place(waiting: bool) -> None:
    gate = asyncio.Event()
    reader = ScriptedReader(gate.wait)
    app = create_app(reader, model="rapidocr", api_key=None)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        others = [asyncio.create_task(chat(http)) for _ in range(2 if waiting else 0)]
        while reader.begun < len(others):
            await asyncio.sleep(0.01)
        body = http.build_request("POST", "/v1/chat/completions", json=request(picture()))
        gone = asyncio.Event()
        sent: list[dict[str, Any]] = []
        messages = [{"type": "http.request", "body": body.content, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        call = asyncio.create_task(app(scope, receive, send))
        if waiting:
            while (
                'waiting{engine="0",model_name="rapidocr"} 1.0'
                not in (await http.get("/metrics")).text
            ):
                await asyncio.sleep(0.01)
        else:
            while reader.begun < 1:
                await asyncio.sleep(0.01)
        gone.set()
        await call
        assert sent[0]["status"] == 499
        await asyncio.sleep(0)
        metrics = (await http.get("/metrics")).text
        numbers = [row.rsplit(" ", 1)[1] for row in metrics.splitlines() if row[0] != "#"]
        assert numbers == [f"{len(others)}.0", "0.0"]
        assert reader.cancelled == (0 if waiting else 1)
        gate.set()
        assert [reply.status_code for reply in await asyncio.gather(*others)] == [200] * len(others)
