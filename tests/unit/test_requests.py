"""The request as the server sees it, and what comes back: against a scripted server."""

from __future__ import annotations

import json
import logging
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr
from support.fault_server import (
    FakeProvider,
    FaultServer,
    answer,
    body,
    half,
    hang_up,
    marked_picture,
    no_choices,
    null_content,
    reset,
    silence,
    slow,
    status,
    wrong_json,
)
from support.reading import INFO, pairing, read_all, read_one, reader

from deepseek_ocr_loaders import retry
from deepseek_ocr_loaders.client import _retry_after
from deepseek_ocr_loaders.errors import (
    AnswerError,
    AuthenticationError,
    ModelNotFoundError,
    PageError,
    RequestError,
    RequestRejectedError,
    RequestTimeoutError,
)
from deepseek_ocr_loaders.page import PageStatus, Picture
from deepseek_ocr_loaders.prompts import PROMPTS
from deepseek_ocr_loaders.reading import is_fatal

if TYPE_CHECKING:
    from support.fault_server import Step


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_backoff", lambda _state: 0.01)


# --- what is sent ---------------------------------------------------------------------------


async def test_the_request_is_the_documented_one() -> None:
    with FaultServer(version="0.32.0") as server:
        result = await read_one(server)
    sent = server.requests[0].body
    assert sent == {
        "model": "deepseek-ai/DeepSeek-OCR",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": sent_url(sent)}},
                    {"type": "text", "text": PROMPTS["markdown"]},
                ],
            }
        ],
        "temperature": 0,
        "skip_special_tokens": False,
        "repetition_detection": {
            "max_pattern_size": 40,
            "min_pattern_size": 1,
            "min_count": 100,
        },
    }
    assert server.requests[0].pictures == [marked_picture(0).data]
    assert (result.status, result.engine, result.model) == (
        PageStatus.OK,
        "vllm",
        "deepseek-ai/DeepSeek-OCR",
    )
    assert (result.width, result.height, result.label) == (104, 156, "1")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (273, 40)


def sent_url(sent: dict[str, Any]) -> str:
    url = sent["messages"][0]["content"][0]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,")
    return str(url)


@pytest.mark.parametrize(
    ("version", "engine", "fields"),
    [
        ("0.12.0", "vllm", set()),
        ("0.19.9", "vllm", set()),
        ("0.20.0", "vllm", {"repetition_detection"}),
        ("0.20.2rc1.dev3+g12ab", "vllm", {"repetition_detection"}),
        ("1.0.0", "vllm", {"repetition_detection"}),
        (None, "vllm", set()),
        ("0.26.0", "sglang", set()),
        ("0.1.0", "rapidocr", set()),
    ],
)
async def test_a_field_goes_only_to_a_server_that_knows_it(
    version: str | None, engine: str, fields: set[str]
) -> None:
    with FaultServer() as server:
        await read_one(FakeProvider(server, version=version, engine=engine))
    known = {"model", "messages", "temperature", "skip_special_tokens"}
    assert set(server.requests[0].body) - known == fields


async def test_special_tokens_are_kept_in_every_request_of_the_ladder() -> None:
    """FAULTS 6: with them skipped, tags and tables vanish."""
    with FaultServer(lambda _r: answer("")) as server:
        await read_one(server)
    assert len(server.requests) > 2
    assert all(request.body["skip_special_tokens"] is False for request in server.requests)
    assert all("temperature" in request.body for request in server.requests)


async def test_fault_06_no_tags_though_boxes_were_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with FaultServer(lambda _r: answer("Alpha\n\nBeta")) as server:
        bare = await read_all(server, 3, prompt="markdown")
        free = await read_one(server, prompt="free")
    assert [page.grounded for page in bare] == [False] * 3
    assert free.grounded
    assert sum("none came" in record.message for record in caplog.records) == 1


async def test_the_environment_of_another_client_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-someone-else")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Secret: mine\nAuthorization: Bearer other")
    with FaultServer() as server:
        await read_one(server)
        server.api_key = "right"
        await read_one(server)
    without, with_key = (request.headers for request in server.requests)
    assert "authorization" not in without
    assert with_key["authorization"] == "Bearer right"
    for headers in (without, with_key):
        text = json.dumps(headers)
        assert not any(word in text for word in ("sk-", "org-1", "proj-1", "X-Secret", "mine"))


@pytest.mark.parametrize(
    "variables",
    [
        {"HTTP_PROXY": "http://127.0.0.1:9"},
        {"http_proxy": "http://127.0.0.1:9", "NO_PROXY": "localhost"},
        {"ALL_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.0/8"},
        {"all_proxy": "http://127.0.0.1:9"},
    ],
)
async def test_fault_37_a_proxy_is_not_asked_for_this_machine(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with FaultServer() as server:
        assert (await read_one(server, retries=0)).status is PageStatus.OK
        local = server.endpoint().base_url.replace("127.0.0.1", "localhost")
        result = await read_one(FakeProvider(server, base_url=local), retries=0)
        assert result.status is PageStatus.OK


# --- faults that heal -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        reset(),
        hang_up(),
        half(),
        wrong_json(),
        no_choices(),
        body(b""),
        body([]),
        body({"choices": []}),
        body({"choices": [{"message": None}]}),
        body({"choices": [{"message": {"content": 7}}]}),
        body({"object": "error", "message": "engine is busy"}),
        status(408),
        status(409),
        status(429),
        status(500),
        status(502),
        status(503),
        status(504),
        status(529),
    ],
)
async def test_a_fault_that_heals_is_tried_again(fault: Step) -> None:
    with FaultServer([fault]) as server:
        result = await read_one(server)
    assert pairing([result]) == [0]
    assert len(server.requests) == 2
    assert server.requests[0].body == server.requests[1].body
    assert [attempt.requests for attempt in result.attempts] == [2]


@pytest.mark.parametrize("retries", [0, 1, 2, 5])
async def test_fault_36_attempts_are_exactly_those_asked_for(retries: int) -> None:
    with FaultServer(lambda _r: status(503, "loading the model")) as server:
        with pytest.raises(RequestError) as caught:
            await read_one(server, retries=retries)
        assert len(server.requests) == 1 + retries
    error = caught.value
    assert type(error) is RequestError
    assert (error.attempts, error.status_code) == (1 + retries, 503)
    assert error.server_message == "loading the model"
    assert (error.source, error.page_number) == (INFO.source, 1)
    for part in (INFO.source, "page 1", "HTTP 503", "loading the model"):
        assert part in str(error)
    assert not is_fatal(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.attempts) == (str(error), error.attempts)


async def test_fault_36_503_twice_then_200() -> None:
    with FaultServer([status(503, retry_after=0), status(503, retry_after=0)]) as server:
        assert pairing([await read_one(server)]) == [0]
    assert len(server.requests) == 3


async def test_fault_36_the_first_connection_is_reset() -> None:
    with FaultServer(reset_first=1) as server:
        assert pairing(await read_all(server, 5)) == list(range(5))


async def test_fault_36_keep_alive_is_closed_after_each_reply() -> None:
    with FaultServer(close_each=True) as server:
        # The waits are taken out here, so each connection of the pool may cost an attempt.
        results = await read_all(server, 40, max_concurrency=4, retries=8)
    assert pairing(results) == list(range(40))


async def test_fault_36_time_in_a_queue_is_not_time_of_the_page() -> None:
    """Two workers, 40 pages: the last waits for 19 others, three times as long as the limit."""
    with FaultServer(workers=2, seconds=0.2) as server:
        results = await read_all(server, 40, timeout=1.2, retries=0)
    assert pairing(results) == list(range(40))
    assert len(server.requests) == 40

    with FaultServer(seconds=0.2) as server:  # our own queue
        results = await read_all(server, 16, timeout=1.2, retries=0, max_concurrency=2)
    assert pairing(results) == list(range(16))
    assert server.most_in_flight == 2


async def test_fault_31_an_answer_that_never_comes_is_given_up() -> None:
    with FaultServer(lambda r: silence() if r.marker == 3 else None) as server:
        results = await read_all(server, 6, timeout=1.5, retries=1)
        assert server.wait_idle()
    assert pairing(results) == [0, 1, 2, None, 4, 5]
    error = results[3]
    assert isinstance(error, RequestTimeoutError)
    assert error.attempts == 2
    assert "1.5 s" in str(error)
    assert server.aborted == 2


async def test_a_trickle_of_bytes_does_not_stretch_the_time_limit() -> None:
    with FaultServer([slow(0.2)]) as server, pytest.raises(RequestTimeoutError):
        await read_one(server, timeout=0.5, retries=0)
    with FaultServer([slow(0.01)]) as server:
        assert pairing([await read_one(server, retries=0)]) == [0]


# --- faults that do not ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "fatal"),
    [
        (400, RequestRejectedError, False),
        (413, RequestRejectedError, False),
        (422, RequestRejectedError, False),
        (418, RequestRejectedError, False),
        (307, RequestRejectedError, False),
        (401, AuthenticationError, True),
        (403, AuthenticationError, True),
        (404, ModelNotFoundError, True),
    ],
)
async def test_what_will_not_heal_is_not_tried_again(
    code: int, kind: type[RequestError], fatal: bool
) -> None:
    with FaultServer(lambda _r: status(code, "cannot identify image file")) as server:
        with pytest.raises(kind) as caught:
            await read_one(server)
        assert len(server.requests) == 1
    assert caught.value.attempts == 1
    assert caught.value.status_code == code
    assert "cannot identify image file" in str(caught.value)
    assert is_fatal(caught.value) is fatal


async def test_fault_37_a_wrong_key_has_a_plain_message_without_the_key() -> None:
    with FaultServer(api_key="right") as server:
        provider = FakeProvider(server, api_key=None)
        with pytest.raises(AuthenticationError, match="api_key"):
            await read_one(provider)

    def tell(_request: object) -> Step:
        return status(401, "Incorrect key provided: s3cr3t-key of yours")

    with FaultServer(tell) as server:
        provider = FakeProvider(server, api_key=SecretStr("s3cr3t-key"))
        with pytest.raises(AuthenticationError) as caught:
            await read_one(provider)
    assert "s3cr3t-key" not in str(caught.value)
    assert "s3cr3t-key" not in repr(vars(caught.value))


async def test_a_message_of_the_server_is_one_short_line() -> None:
    fault = status(400, "no\n\n" + "x" * 5000)
    with FaultServer(lambda _r: fault) as server, pytest.raises(RequestRejectedError) as caught:
        await read_one(server)
    assert len(caught.value.server_message) == 500
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (body({"object": "error", "message": "old shape"}, 400), "old shape"),
        (body({"error": {"message": "new shape"}}, 400), "new shape"),
        (body({"error": "plain"}, 400), "plain"),
        (body({"detail": [{"msg": "field required"}]}, 422), "field required"),
        (body("<html>nginx</html>", 413), "<html>nginx</html>"),
        (body(b"\xff\xfe", 400), ""),
        (body(b"", 400), ""),
    ],
)
async def test_every_shape_of_error_reply_is_understood(reply: Step, said: str) -> None:
    with FaultServer(lambda _r: reply) as server, pytest.raises(RequestRejectedError) as caught:
        await read_one(server)
    assert said in caught.value.server_message


async def test_fault_10_no_answer_at_all_is_an_error_of_the_page() -> None:
    with FaultServer(lambda r: no_choices() if r.marker == 1 else None) as server:
        results = await read_all(server, 3)
    assert pairing(results) == [0, None, 2]
    assert isinstance(results[1], AnswerError)
    assert results[1].attempts == 4


async def test_fault_42_one_page_fails_and_the_others_do_not() -> None:
    for fault in (status(500), wrong_json(), silence(), reset(), status(400)):
        with FaultServer(lambda r, f=fault: f if r.marker == 1 else None) as server:
            results = await read_all(server, 4, retries=1, timeout=1.5)
        assert pairing(results) == [0, None, 2, 3]
        assert isinstance(results[1], PageError)
        assert results[1].page_number == 2


# --- one corrected try ----------------------------------------------------------------------

TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, you requested 9400 tokens "
    "(1208 in the messages, 8192 in the completion). Please reduce the length."
)


async def test_fault_35_a_token_limit_is_corrected_once() -> None:
    def old(request: Any) -> Step | None:
        return None if 0 < request.body.get("max_tokens", 0) <= 7000 else status(400, TOO_LONG)

    with FaultServer(old) as server:
        results = await read_all(server, 1)
        assert pairing(results) == [0]
        assert [r.body.get("max_tokens") for r in server.requests] == [None, 6992]
    with FaultServer(old) as server:  # it is learned
        async with reader(server) as open_reader:
            for number in range(3):
                await open_reader.read(INFO, number, "", marked_picture(number))
        assert len(server.requests) == 4


async def test_fault_35_a_limit_that_stays_is_not_tried_for_ever() -> None:
    with FaultServer(lambda _r: status(400, TOO_LONG)) as server:
        with pytest.raises(RequestRejectedError, match="maximum context length") as caught:
            await read_one(server)
        assert len(server.requests) == 2
    assert caught.value.attempts == 2


async def test_fault_35_a_smaller_context_is_respected() -> None:
    with FaultServer([status(400, "max_tokens is too large")], max_model_len=4096) as server:
        await read_one(server)
    assert server.requests[1].body["max_tokens"] == 4096 - 1200


async def test_fault_35_strict_server_takes_the_request() -> None:
    """It counts pictures, wants them as parts with a data URL, and a small max_tokens."""
    with FaultServer(strict=True) as server:
        assert pairing(await read_all(server, 3)) == [0, 1, 2]
        broken = Picture(b"\x89PNG\r\n\x1a\nbroken", "image/png", 10, 10)
        async with reader(server) as open_reader:
            with pytest.raises(RequestRejectedError, match="cannot identify"):
                await open_reader.read(INFO, 0, "1", broken)
        assert len(server.requests) == 4


@pytest.mark.parametrize(
    "message",
    [
        "[{'type': 'extra_forbidden', 'loc': ('body', 'repetition_detection')}]",
        "Extra inputs are not permitted",
        "vllm_xargs.whitelist_token_ids: Input should be a valid string",
        "Unknown parameter: 'repetition_detection'",
        "unsupported argument",
    ],
)
async def test_fault_08_an_unknown_field_is_left_out_and_said_once(
    message: str, caplog: pytest.LogCaptureFixture
) -> None:
    def old(request: Any) -> Step | None:
        refused = {"vllm_xargs", "repetition_detection"} & set(request.body)
        return status(400, message) if refused else None

    with FaultServer(old) as server:
        async with reader(server) as open_reader:
            for number in range(4):
                await open_reader.read(INFO, number, "", marked_picture(number))
    assert len(server.requests) == 5
    assert "repetition_detection" not in server.requests[1].body
    warned = [r for r in caplog.records if r.levelno == logging.WARNING and "guard" in r.message]
    assert len(warned) == 1


@pytest.mark.parametrize("message", ["whitelist_token_ids: str type expected", "Bad Request"])
async def test_fault_08_a_list_is_refused_by_an_old_server(message: str) -> None:
    """Its n-gram limits cannot be had: the page is still read, by the other means.

    Where the message says nothing: the same page was taken without them.
    """

    def old(request: Any) -> Step | None:
        if "vllm_xargs" in request.body:
            return status(400, message)
        return answer("") if request.body["temperature"] == 0 else None

    with FaultServer(old, version="0.12.0") as server:
        result = await read_one(server)
    assert pairing([result]) == [0]
    assert [a.method for a in result.attempts] == ["plain", "ngram", "sampling"]


async def test_fields_that_were_taken_with_the_page_are_not_the_cause() -> None:
    def script(request: Any) -> Step | None:
        if request.index < 3:
            return answer("", "length")
        return status(400, "Bad Request")  # of a half

    with FaultServer(script) as server:
        result = await read_one(server)
    assert len(server.requests) == 4
    assert result.attempts[-1].method == "halves"
    assert result.status is PageStatus.TRUNCATED


async def test_a_refusal_for_another_reason_is_not_taken_for_an_unknown_field() -> None:
    with FaultServer(lambda _r: status(400, "invalid image")) as server:
        with pytest.raises(RequestRejectedError):
            await read_one(server)
        assert len(server.requests) == 1


# --- odd but valid answers ------------------------------------------------------------------


async def test_content_in_parts_and_no_usage() -> None:
    parts = [{"type": "text", "text": "Al"}, {"type": "text", "text": "pha"}]
    choice = {"message": {"content": parts}, "finish_reason": None}
    with FaultServer([body({"choices": [choice], "usage": None})]) as server:
        result = await read_one(server, prompt="free")
    assert result.raw == "Alpha"
    assert result.usage.completion_tokens == 0


async def test_fault_10_null_is_an_empty_answer_not_a_crash() -> None:
    with FaultServer(lambda _r: null_content()) as server:
        result = await read_one(server)
    assert result.status is PageStatus.EMPTY
    assert result.raw == ""


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("2", 2, 2),
        ("0.5", 0.5, 0.5),
        ("-3", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Fri, 31 Dec 2100 23:59:59 GMT", 1e8, 1e10),
    ],
)
def test_retry_after_in_seconds_and_as_a_date(value: str, low: float, high: float) -> None:
    found = _retry_after(value)
    assert found is not None
    assert low <= found <= high


@pytest.mark.parametrize("value", [None, "", "soon", "nan", "inf", "Wed, 99 Foo 2015"])
def test_a_retry_after_without_meaning_is_none(value: str | None) -> None:
    assert _retry_after(value) is None
