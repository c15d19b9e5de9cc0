"""How many pages are kept at a server that does not say how many it works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fault_server import FaultServer, answer, marked_pdf, markers_in

from deepseek_ocr_loaders import DeepSeekOCRLoader, delivery, pace
from deepseek_ocr_loaders.pace import Load, load_of, next_limit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("limit", "load", "full", "expected"),
    [
        (64, Load(64, 0), True, 128),  # it took all at once: it could take more
        (64, Load(20, 0), False, 64),  # there are no more pages to send
        (64, Load(60, 4), True, 64),  # a few that wait keep it busy
        (64, Load(16, 48), True, 24),
        (6, Load(1, 500), True, pace.SMALLEST),  # others fill it
        (400, Load(400, 0), True, pace.LARGEST),
    ],
)
def test_the_limit_follows_the_queue(limit: int, load: Load, full: bool, expected: int) -> None:
    assert next_limit(limit, load, full=full, settled=False) == expected


def test_once_found_the_limit_takes_small_steps() -> None:
    assert next_limit(64, Load(64, 0), full=True, settled=True) == 72


@pytest.mark.parametrize("slots", [5, 48, 100, 256])
def test_the_limit_settles_at_the_slots_and_an_eighth(slots: int) -> None:
    limit, settled = pace.DEFAULT_CONCURRENCY, False
    for _ in range(12):
        running, before = min(limit, slots), limit
        limit = next_limit(limit, Load(running, limit - running), full=True, settled=settled)
        settled = settled or limit < before
    assert slots <= limit <= slots + max(1, limit // 8)


async def test_the_load_of_all_engines_is_read() -> None:
    with FaultServer(metrics=True) as server:
        assert await load_of(server.endpoint()) == Load(0, 0)
    with FaultServer() as server:
        assert await load_of(server.endpoint()) is None  # no /metrics
        server.kill()
        assert await load_of(server.endpoint()) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            """
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 4.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:num_requests_waiting{engine="1"} 2
vllm:num_requests_waiting_by_reason{engine="0"} 7.0
""",
            Load(7, 2),
        ),
        ("vllm:num_requests_running 1.0\n", None),
        ("vllm:num_requests_running NaN\nvllm:num_requests_waiting NaN\n", None),
        ("<html>", None),
        ("", None),
    ],
)
async def test_what_the_metrics_say(
    text: str, expected: Load | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def metrics(*_: object) -> str:
        return text

    monkeypatch.setattr(pace, "metrics", metrics)
    with FaultServer() as server:
        assert await load_of(server.endpoint()) == expected


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    path = tmp_path / "pages.pdf"
    path.write_bytes(marked_pdf(range(60)))
    return path


def test_a_large_server_is_filled(pdf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(delivery, "DEFAULT_CONCURRENCY", 4)
    with FaultServer(lambda _: answer(delay=3.0), metrics=True) as server:
        documents = DeepSeekOCRLoader(pdf, base_url=server.base_url).load()
        assert server.most_in_flight > 8
    assert [n for document in documents for n in markers_in(document.page_content)] == [*range(60)]


def test_a_small_server_is_not_flooded(pdf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "CHECK_SECONDS", 0.02)
    with FaultServer(lambda _: answer(delay=0.3), workers=4, metrics=True) as server:
        pages = DeepSeekOCRLoader(pdf, base_url=server.base_url).lazy_load()
        for _ in range(40):
            next(pages)
        server.most_in_flight = 0
        assert len(list(pages)) == 20
        assert server.most_in_flight < 10


def test_a_given_limit_is_kept(pdf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "CHECK_SECONDS", 0.02)
    with FaultServer(lambda _: answer(delay=0.05), metrics=True) as server:
        DeepSeekOCRLoader(pdf, base_url=server.base_url, max_concurrency=20).load()
        assert server.most_in_flight <= 20
