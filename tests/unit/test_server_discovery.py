from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from deepseek_ocr_loaders import DeepSeekOCRServer
from deepseek_ocr_loaders.errors import (
    AuthenticationError,
    ConfigurationError,
    ModelNotFoundError,
    ServerUnreachableError,
)
from deepseek_ocr_loaders.server.discovery import discover, is_alive, is_loopback
from deepseek_ocr_loaders.server.provider import ForeignProvider, provider_for
from deepseek_ocr_loaders.settings import Settings

VLLM = {"id": "deepseek-ai/DeepSeek-OCR", "owned_by": "vllm", "max_model_len": 8192}
Make = Callable[..., str]


@pytest.fixture
def make() -> Iterator[Make]:
    servers: list[ThreadingHTTPServer] = []

    def start(
        *models: Any, key: str = "", health: int = 200, body: bytes | None = None, status: int = 200
    ) -> str:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                code, answer = status, json.dumps({"data": list(models)}).encode()
                if self.path == "/health":
                    code, answer = self.server.health, b""  # type: ignore[attr-defined]
                elif self.path == "/version":
                    answer = b'{"version": "0.26.0"}'
                elif key and self.headers.get("Authorization") != f"Bearer {key}":
                    code, answer = 401, b'{"error": "Unauthorized"}'
                elif body is not None:
                    answer = body
                self.send_response(code)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.health = health  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/v1"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def closed_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}/v1"


async def find(url: str, model: str | None = None, key: str | None = None) -> Any:
    return await discover(url, api_key=SecretStr(key) if key else None, model=model, timeout=5)


async def test_the_only_model_is_found_out(make: Make) -> None:
    found = await find(make(VLLM))
    assert (found.model, found.reader, found.engine) == (VLLM["id"], VLLM["id"], "vllm")
    assert (found.version, found.max_model_len, found.max_concurrency) == ("0.26.0", 8192, None)


async def test_what_the_embedded_engine_tells_is_taken(make: Make) -> None:
    entry = {"id": "rapidocr", "owned_by": "rapidocr", "reader": "PP-OCRv6", "max_num_seqs": 2}
    found = await find(make(entry))
    assert (found.engine, found.reader, found.max_concurrency) == ("rapidocr", "PP-OCRv6", 2)


async def test_of_several_models_one_must_be_named(make: Make) -> None:
    url = make(VLLM, {"id": "other"})
    with pytest.raises(ModelNotFoundError, match=r"several.*DeepSeek-OCR, other"):
        await find(url)
    assert (await find(url, "other")).model == "other"


async def test_wrong_model_lists_what_is_served(make: Make) -> None:
    with pytest.raises(ModelNotFoundError, match=r"serves: deepseek-ai/DeepSeek-OCR"):
        await find(make(VLLM), "gpt")


async def test_fault_31_case_of_the_model_counts(make: Make) -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean 'deepseek-ai/DeepSeek-OCR'"):
        await find(make(VLLM), "deepseek-ai/deepseek-ocr")


async def test_fault_31_healthy_with_an_empty_list(make: Make) -> None:
    with pytest.raises(ModelNotFoundError, match="no model"):
        await find(make())


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_fault_37_refused_key_is_told_plainly(make: Make, key: str | None) -> None:
    with pytest.raises(AuthenticationError, match="DEEPSEEK_OCR_API_KEY") as caught:
        await find(make(VLLM, key="right"), key=key)
    assert "/health needs no key" in str(caught.value)
    assert "right" not in str(caught.value)
    if key:
        assert "wrong" not in str(caught.value)


async def test_right_key_is_taken_and_not_shown(make: Make) -> None:
    found = await find(make(VLLM, key="right-key"), key="right-key")
    assert "right-key" not in repr(found)


async def test_nobody_there() -> None:
    url = closed_port()
    with pytest.raises(ServerUnreachableError, match="no server answers") as caught:
        await find(url)
    assert caught.value.base_url == url


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"<html>", 200), (b"", 200), (b"[1]", 200), (b'{"data": 3}', 200), (b"{}", 404)],
)
async def test_something_else_answers(make: Make, body: bytes, status: int) -> None:
    with pytest.raises(ServerUnreachableError, match="OpenAI-compatible"):
        await find(make(body=body, status=status))


async def test_odd_entries_do_not_break_it(make: Make) -> None:
    odd = {"id": "m", "max_model_len": "8192", "max_num_seqs": True, "reader": None, "owned_by": 3}
    found = await find(make(None, {"no": "id"}, odd))
    assert (found.model, found.reader, found.engine) == ("m", "m", "unknown")
    assert (found.max_model_len, found.max_concurrency) == (None, None)


@pytest.mark.parametrize(
    "proxies",
    [
        {"HTTP_PROXY": "http://127.0.0.1:9"},
        {"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"},
        {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "localhost"},
        {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.0/8"},
        {"ALL_PROXY": "socks5://127.0.0.1:9"},
    ],
)
async def test_fault_37_no_proxy_on_the_way_to_this_machine(
    make: Make, monkeypatch: pytest.MonkeyPatch, proxies: dict[str, str]
) -> None:
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    found = await find(make(VLLM))
    assert await is_alive(found)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:1/v1", True),
        ("http://127.9.9.9:1/v1", True),
        ("http://localhost:1/v1", True),
        ("http://[::1]:1/v1", True),
        ("http://0.0.0.0:1/v1", True),
        ("http://gpu-box:1/v1", False),
        ("http://10.0.0.1/v1", False),
        ("https://127.0.0.1.example.org/v1", False),
    ],
)
def test_fault_37_which_addresses_are_this_machine(url: str, loopback: bool) -> None:
    assert is_loopback(url) is loopback


# --- providers -------------------------------------------------------------------------------


async def test_one_of_several_that_is_down_is_missing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    provider = ForeignProvider((make(VLLM), closed_port(), make(VLLM)), None, None)
    with caplog.at_level(logging.WARNING):
        assert len(await provider.acquire()) == 2
    assert "no server answers" in caplog.text
    with pytest.raises(ServerUnreachableError):
        await ForeignProvider((closed_port(), closed_port()), None, None).acquire()
    with pytest.raises(AuthenticationError):
        await ForeignProvider((make(VLLM), make(VLLM, key="k")), None, None).acquire()


async def test_foreign_server_that_lives_needs_no_recovery(make: Make) -> None:
    provider = ForeignProvider((make(VLLM),), None, None)
    (endpoint,) = await provider.acquire()
    assert await provider.recover(endpoint) is None
    await provider.release()


async def test_foreign_server_that_stays_away(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr("deepseek_ocr_loaders.server.provider.FOREIGN_RETURN", 0.1)
    provider = ForeignProvider((make(VLLM),), None, None)
    (endpoint,) = await provider.acquire()
    gone = type(endpoint)(closed_port(), endpoint.model, "vllm", "x")
    with pytest.raises(ServerUnreachableError):
        await provider.recover(gone)


async def test_sick_foreign_server_that_recovers_has_a_new_generation(make: Make) -> None:
    health = {"code": 503}
    provider = ForeignProvider((make(VLLM, health=503),), None, None)
    (endpoint,) = await provider.acquire()
    other = make(VLLM)
    assert not await is_alive(endpoint)
    # As if it came back at the same address.
    revived = type(endpoint)(other, endpoint.model, "vllm", "x")
    provider = ForeignProvider((other,), None, None)
    assert await provider.recover(revived) is None
    assert health["code"] == 503


def test_an_empty_address_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPSEEK_OCR_BASE_URL", raising=False)
    assert DeepSeekOCRServer(base_url="")._foreign is None
    with pytest.raises(ConfigurationError, match="api_key belongs to base_url"):
        DeepSeekOCRServer(base_url="", api_key="k")


async def test_a_server_at_an_address_is_only_attached_to(make: Make) -> None:
    url = make(VLLM, key="k")
    server = DeepSeekOCRServer(base_url=url.removesuffix("/v1"), api_key="k")
    with server:
        # A running loop does not matter.
        assert (server.base_url, server.model, server.engine) == (url, VLLM["id"], "vllm")
        assert (server.log_file, server.pid) == (None, None)
        provider = provider_for(Settings.create({"server": server}))
        assert [found.base_url for found in await provider.acquire()] == [url]
        await provider.release()
    with pytest.raises(ConfigurationError):
        _ = server.base_url


def test_configured_address_is_taken_by_auto(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_OCR_BASE_URL", make(VLLM))
    with DeepSeekOCRServer() as server:
        assert server.model == VLLM["id"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"engine": "magic"}, "engine"),
        ({"gpu_memory_utilization": 90}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization"),
        ({"port": 0}, "port"),
        ({"port": 70000}, "port"),
        ({"data_parallel_size": 0}, "data_parallel_size"),
        ({"extra_args": "--max-num-seqs 4"}, "extra_args"),
        ({"extra_args": ["--api-key", "secret"]}, "command line"),
        ({"extra_args": ["--api_key=secret"]}, "command line"),
        ({"api_key": "k"}, "base_url"),
        ({"base_url": "gpu-box:8000"}, "http://"),
    ],
)
def test_wrong_parameters_are_told_at_once(
    wrong: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BASE_URL", "API_KEY", "ENGINE", "MODEL"):
        monkeypatch.delenv(f"DEEPSEEK_OCR_{name}", raising=False)
    with pytest.raises(ConfigurationError, match=told) as caught:
        DeepSeekOCRServer(**wrong)
    assert "secret" not in str(caught.value)


def test_something_else_as_server_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="base_url"):
        provider_for(Settings.create({"server": "http://127.0.0.1:1"}))
