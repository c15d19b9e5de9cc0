"""The scripted server itself, because the other tests lean on it."""

from __future__ import annotations

import base64
import io

import httpx2
import pymupdf
import pytest
from PIL import Image
from support.fault_server import (
    FaultServer,
    answer,
    die,
    half,
    hang_up,
    marked_image,
    marked_pdf,
    marked_picture,
    marker_text,
    markers_in,
    read_marker,
    reset,
    silence,
    slow,
    status,
    wrong_json,
)


def _body(number: int, **extra: object) -> dict[str, object]:
    url = "data:image/png;base64," + base64.b64encode(marked_picture(number).data).decode()
    return {
        "model": "deepseek-ai/DeepSeek-OCR",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": url}},
                    {"type": "text", "text": "Free OCR."},
                ],
            }
        ],
        **extra,
    }


def _post(server: FaultServer, number: int = 3, **extra: object) -> httpx2.Response:
    url = server.base_url + "/chat/completions"
    with httpx2.Client(trust_env=False, timeout=5) as client:
        return client.post(url, json=_body(number, **extra))


@pytest.mark.parametrize("number", [0, 1, 5, 1999, 123_456, (1 << 20) - 1])
def test_a_picture_carries_its_number_through_scaling_and_cutting(number: int) -> None:
    assert read_marker(marked_picture(number).data) == number
    image = marked_image(number, 260, 390)
    for piece in (
        image.resize((640, 960), Image.Resampling.BICUBIC),
        image.crop((0, 0, 260, 200)),
        image.crop((0, 190, 260, 390)),
    ):
        stream = io.BytesIO()
        piece.save(stream, "JPEG")
        assert read_marker(stream.getvalue()) == number


def test_a_drawn_pdf_page_carries_its_number() -> None:
    document = pymupdf.open("pdf", marked_pdf([7, 4711]))
    found = [read_marker(page.get_pixmap(dpi=72).tobytes("png")) for page in document]
    document.close()
    assert found == [7, 4711]


def test_it_answers_with_the_number_and_records_the_request() -> None:
    with FaultServer() as server:
        reply = _post(server, 12).json()
    assert markers_in(reply["choices"][0]["message"]["content"]) == [12]
    assert server.requests[0].prompt == "Free OCR."
    assert server.requests[0].marker == 12
    assert server.requests[0].outcome == "replied"


def test_the_script_is_played_in_order_and_then_all_is_well() -> None:
    with FaultServer([status(429, retry_after=2), wrong_json(), answer("hello"), slow()]) as server:
        refused, broken, said, slowly, well = (_post(server) for _ in range(5))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    with pytest.raises(ValueError):
        broken.json()
    assert said.json()["choices"][0]["message"]["content"] == "hello"
    assert slowly.json()["choices"][0]["message"]["content"] == marker_text(3)
    assert well.status_code == 200


@pytest.mark.parametrize("fault", [reset(), hang_up(), half()])
def test_broken_connections_are_transport_errors(fault: object) -> None:
    with FaultServer([fault]) as server:
        with pytest.raises(httpx2.TransportError):
            _post(server)
        assert _post(server).status_code == 200


def test_a_client_that_goes_away_is_seen() -> None:
    with FaultServer([silence()]) as server:
        with httpx2.Client(trust_env=False) as client, pytest.raises(httpx2.ReadTimeout):
            client.post(server.base_url + "/chat/completions", json=_body(1), timeout=0.3)
        assert server.wait_idle()
        assert server.aborted == 1


def test_it_dies_and_comes_back_at_the_same_port() -> None:
    with FaultServer([die()]) as server:
        with pytest.raises(httpx2.TransportError):
            _post(server)
        assert not server.alive
        with pytest.raises(httpx2.ConnectError):
            _post(server)
        server.restart()
        assert _post(server).status_code == 200
        assert server.generation == 1


def test_it_refuses_what_vllm_refuses() -> None:
    with FaultServer(refuse_fields=["vllm_xargs"], api_key="secret") as server:
        assert _post(server).status_code == 401
        server.api_key = None
        assert _post(server, max_tokens=8000).status_code == 400
        assert _post(server, vllm_xargs={}).status_code == 400
        assert _post(server, model="other").status_code == 404
        with httpx2.Client(trust_env=False) as client:
            assert client.get(server.base_url.removesuffix("/v1") + "/health").status_code == 200
            assert client.get(server.base_url + "/models").json()["data"][0]["id"]


def test_resets_on_accept_and_closed_keep_alive() -> None:
    with FaultServer(reset_first=1, close_each=True) as server:
        with pytest.raises(httpx2.TransportError):
            _post(server)
        assert _post(server).status_code == 200
