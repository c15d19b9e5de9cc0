"""The path of all pages of a run: order, bounds, policies, and what is left when it stops."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymupdf
import pytest
from support.fault_server import (
    ChatRequest,
    FaultServer,
    Step,
    answer,
    marked_pdf,
    markers_in,
    silence,
    status,
)

from deepseek_ocr_loaders import pipeline
from deepseek_ocr_loaders import source as source_module
from deepseek_ocr_loaders.errors import (
    AllPagesFailedError,
    AuthenticationError,
    ConfigurationError,
    CorruptSourceError,
    RequestError,
    ServerError,
    SourceNotFoundError,
)
from deepseek_ocr_loaders.langchain import DeepSeekOCRLoader
from deepseek_ocr_loaders.pipeline import read_documents
from deepseek_ocr_loaders.report import RunReport
from deepseek_ocr_loaders.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langchain_core.documents import Document


def _markers(documents: list[Any]) -> list[int]:
    return [marker for document in documents for marker in markers_in(document.page_content)]


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    path = tmp_path / "marked.pdf"
    path.write_bytes(marked_pdf(range(100, 120)))
    return path


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    pages: list[int] = []
    original = source_module.OpenSource.picture

    def picture(self: Any, index: int, **options: Any) -> Any:
        pages.append(index)
        return original(self, index, **options)

    monkeypatch.setattr(source_module.OpenSource, "picture", picture)
    return pages


def _loader(path: object, server: FaultServer, **options: Any) -> DeepSeekOCRLoader:
    return DeepSeekOCRLoader(path, base_url=server.base_url, **options)


def test_pages_come_in_order_whatever_the_order_of_the_replies(pdf: Path) -> None:
    chance = random.Random(4)

    def script(_: ChatRequest) -> Step:
        return answer(delay=chance.uniform(0, 0.1))

    with FaultServer(script) as server:
        documents = _loader(pdf, server, max_concurrency=8).load()
        assert server.most_in_flight <= 8
    assert _markers(documents) == list(range(100, 120))
    assert [document.metadata["page"] for document in documents] == list(range(20))


def test_fault_49_the_first_document_is_out_before_the_tenth_page_is_drawn(
    pdf: Path, drawn: list[int]
) -> None:
    with FaultServer(seconds=0.01) as server:
        documents = _loader(pdf, server, max_concurrency=64).lazy_load()
        assert drawn == []
        first = next(documents)
        time.sleep(0.3)
        assert len(drawn) < 10
        assert _markers([first, *documents]) == list(range(100, 120))


@pytest.mark.parametrize("way", ["load", "lazy_load"])
def test_only_who_may_stop_after_the_first_page_waits_for_it(pdf: Path, way: str) -> None:
    """`load` wants every page: none need wait until the first is out."""
    first_out = threading.Event()

    async def script(_: ChatRequest) -> Step | None:
        while not first_out.is_set():
            await asyncio.sleep(0.01)
        return None

    with FaultServer(script) as server, ThreadPoolExecutor() as pool:
        loader = _loader(pdf, server, max_concurrency=20)
        documents = pool.submit(lambda: list(getattr(loader, way)()))
        wanted = 20 if way == "load" else 8
        for _ in range(500):
            if server.in_flight == wanted:
                break
            time.sleep(0.01)
        time.sleep(0.1)
        assert server.in_flight == wanted
        first_out.set()
        assert _markers(documents.result()) == list(range(100, 120))


def test_a_run_that_a_callback_begins_is_no_part_of_load(pdf: Path) -> None:
    seen: list[bool] = []
    with FaultServer() as server:
        _loader(pdf, server, on_page=lambda _: seen.append(pipeline._all_wanted.get())).load()
    assert seen == [False] * 20


def test_a_subclass_that_changes_documents_changes_those_of_load(pdf: Path) -> None:
    class Numbered(DeepSeekOCRLoader):
        def lazy_load(self) -> Iterator[Document]:
            for number, document in enumerate(super().lazy_load()):
                document.metadata["number"] = number
                yield document

    with FaultServer() as server:
        documents = Numbered(pdf, base_url=server.base_url).load()
    assert [document.metadata["number"] for document in documents] == list(range(20))


def test_drawing_is_bounded_when_the_server_is_slow(pdf: Path, drawn: list[int]) -> None:
    def script(request: ChatRequest) -> Step | None:
        return None if request.marker in {100, 101} else silence()

    with FaultServer(script) as server:
        documents = _loader(pdf, server, max_concurrency=2).lazy_load()
        next(documents)
        next(documents)
        time.sleep(0.5)
        assert len(drawn) <= 2 + 2 + 2  # handed out, in flight, drawn ahead
        documents.close()  # type: ignore[attr-defined]
        assert server.wait_idle()


def test_results_do_not_pile_up_before_a_consumer_that_stopped(tmp_path: Path) -> None:
    path = tmp_path / "long.pdf"
    path.write_bytes(marked_pdf(range(300)))
    with FaultServer() as server:
        documents = _loader(path, server, max_concurrency=4).lazy_load()
        next(documents)
        next(documents)
        time.sleep(1.0)
        assert len(server.requests) <= 2 + 4 * 4 + 16
        assert _markers(list(documents)) == list(range(2, 300))


def test_a_slow_page_does_not_stop_the_others(pdf: Path) -> None:
    release = threading.Event()

    async def script(request: ChatRequest) -> Step | None:
        if request.marker == 101:
            while not release.is_set():
                await asyncio.sleep(0.01)
        return None

    with FaultServer(script) as server:
        documents = _loader(pdf, server, max_concurrency=4).lazy_load()
        first = next(documents)
        rest: list[Any] = []
        thread = threading.Thread(target=lambda: rest.extend(documents))
        thread.start()
        deadline = time.monotonic() + 20
        while len(server.requests) < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(server.requests) == 20
        release.set()
        thread.join(20)
    assert _markers([first, *rest]) == list(range(100, 120))


def _fail(*pages: int) -> Any:
    def script(request: ChatRequest) -> Step | None:
        return status(400, "no such luck") if request.marker in pages else None

    return script


def test_fault_42_raise_names_page_file_and_reason(pdf: Path) -> None:
    with FaultServer(_fail(102)) as server:
        documents = _loader(pdf, server, pages="1-5").lazy_load()
        assert _markers([next(documents), next(documents)]) == [100, 101]
        with pytest.raises(RequestError, match=r"no such luck") as caught:
            next(documents)
    assert caught.value.page_number == 3
    assert "marked.pdf" in str(caught.value)
    assert caught.value.status_code == 400


def test_fault_42_skip_keeps_order_and_numbers(pdf: Path, caplog: pytest.LogCaptureFixture) -> None:
    with FaultServer(_fail(100, 103)) as server:
        documents = _loader(pdf, server, pages="1-5", on_error="skip").load()
    assert [document.metadata["page_number"] for document in documents] == [2, 3, 5]
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2
    assert "no such luck" in errors[0].getMessage()


def test_fault_42_record_keeps_the_place_and_is_never_mistaken_for_text(pdf: Path) -> None:
    with FaultServer(_fail(100, 103)) as server:
        documents = _loader(pdf, server, pages="1-5", on_error="record").load()
    assert [document.metadata["page_number"] for document in documents] == [1, 2, 3, 4, 5]
    assert [document.metadata["ocr_status"] for document in documents] == [
        "failed", "ok", "ok", "failed", "ok",
    ]  # fmt: skip
    assert documents[0].page_content == ""
    assert "no such luck" in documents[0].metadata["ocr_error"]


@pytest.mark.parametrize("policy", ["skip", "record"])
def test_fault_42_all_pages_failed_raises_whatever_the_policy(pdf: Path, policy: str) -> None:
    with FaultServer(lambda _: status(400, "no such luck")) as server:
        documents = _loader(pdf, server, pages="1-5", on_error=policy).lazy_load()
        with pytest.raises(AllPagesFailedError, match="not one of 5") as caught:
            next(documents)  # nothing may have been handed out before
    assert [error.page_number for error in caught.value.errors] == [1, 2, 3, 4, 5]  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["raise", "skip", "record"])
def test_a_server_that_is_gone_raises_at_once_and_is_not_skipped_page_by_page(
    pdf: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepseek_ocr_loaders.server.provider.FOREIGN_RETURN", 0.5)
    with FaultServer() as server:
        documents = _loader(pdf, server, on_error=policy, retries=1, max_concurrency=2).lazy_load()
        next(documents)
        server.kill()
        with pytest.raises(ServerError):
            list(documents)


def test_a_wrong_key_ends_the_run_at_once(pdf: Path) -> None:
    with FaultServer(api_key="right") as server, pytest.raises(AuthenticationError):
        _loader(pdf, server, api_key="wrong", on_error="skip").load()


def test_a_fatal_error_does_not_wait_for_a_page_that_hangs(pdf: Path) -> None:
    def script(request: ChatRequest) -> Step | None:
        return silence() if request.marker == 100 else status(401, "who are you")

    with FaultServer(script) as server, pytest.raises(AuthenticationError):
        _loader(pdf, server).load()


def test_missing_files_are_told_before_a_server_is_started(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"gone\.pdf"):
        DeepSeekOCRLoader(tmp_path / "gone.pdf", engine="vllm").load()


def test_a_list_with_a_bad_file_follows_the_policy(pdf: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pdf"
    bad.write_bytes(b"%PDF-1.4\nnothing of use")
    with FaultServer() as server:
        with pytest.raises(CorruptSourceError, match=r"bad\.pdf"):
            _loader([bad, pdf], server).load()
        skipped = _loader([bad, pdf], server, pages="1", on_error="skip").load()
        recorded = _loader([bad, pdf], server, pages="1", on_error="record").load()
    assert _markers(skipped) == [100]
    assert [document.metadata["ocr_status"] for document in recorded] == ["failed", "ok"]
    assert recorded[0].metadata["source"] == str(bad)


def test_many_documents_are_read_at_the_same_time(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number:02}.pdf").write_bytes(marked_pdf([number]))
    with FaultServer(seconds=0.1) as server:
        documents = _loader(tmp_path, server, max_concurrency=6).load()
        assert server.most_in_flight > 3
    assert _markers(documents) == list(range(12))


def test_pages_that_select_nothing_are_told(pdf: Path) -> None:
    with FaultServer() as server, pytest.raises(ConfigurationError, match="selects no page"):
        _loader(pdf, server, pages="50-").load()


def _open_files(path: Path) -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += entry.readlink() == path
        except OSError:
            continue
    return count


@pytest.mark.parametrize("how", ["close", "garbage", "end", "error"])
def test_fault_27_files_and_requests_are_freed(pdf: Path, how: str) -> None:
    def script(request: ChatRequest) -> Step | None:
        if how == "error" and request.marker == 101:
            return status(400)
        hangs = how in {"close", "garbage"} and request.marker not in {100, 101}
        return silence() if hangs else None

    with FaultServer(script) as server:
        documents: Iterator[Any] | None = _loader(pdf, server, max_concurrency=4).lazy_load()
        assert documents is not None
        next(documents)
        if how == "close":
            documents.close()  # type: ignore[attr-defined]
        elif how == "garbage":
            documents = None
            gc.collect()
        elif how == "end":
            list(documents)
        else:
            with pytest.raises(RequestError):
                list(documents)
        assert server.wait_idle()
        assert _open_files(pdf) == 0


async def test_cancelling_the_task_aborts_the_requests(pdf: Path) -> None:
    with FaultServer(lambda _: silence()) as server:
        task = asyncio.create_task(_loader(pdf, server, max_concurrency=4).aload())
        while len(server.requests) < 4:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.wait_idle)
        assert server.aborted == 4
        assert _open_files(pdf) == 0


async def test_break_in_an_async_loop_frees_everything(pdf: Path) -> None:
    def script(request: ChatRequest) -> Step | None:
        return None if request.marker == 100 else silence()

    with FaultServer(script) as server:
        async for _ in _loader(pdf, server, max_concurrency=4).alazy_load():
            break
        gc.collect()
        assert await asyncio.to_thread(server.wait_idle)
        deadline = time.monotonic() + 10  # the loop closes the generator in a task of its own
        while _open_files(pdf) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert _open_files(pdf) == 0


def test_one_document_of_all_pages_is_read_at_full_speed(tmp_path: Path) -> None:
    path = tmp_path / "many.pdf"
    path.write_bytes(marked_pdf(range(100, 150)))
    with FaultServer(lambda _: answer(delay=1.0)) as server:
        (document,) = _loader(path, server, max_concurrency=20, mode="document").load()
        assert server.most_in_flight == 20
    assert _markers([document]) == list(range(100, 150))


def test_fault_49_documents_of_one_page_are_read_lazily_too(
    tmp_path: Path, drawn: list[int]
) -> None:
    paths = [tmp_path / f"{number}.pdf" for number in range(30)]
    for number, path in enumerate(paths):
        path.write_bytes(marked_pdf([number]))
    with FaultServer(seconds=0.3) as server:
        documents = _loader(paths, server, max_concurrency=30, mode="document").lazy_load()
        first = next(documents)
        assert len(drawn) < 10
        documents.close()
    assert _markers([first]) == [0]


def test_pages_without_a_document_do_not_hold_the_others_up(tmp_path: Path) -> None:
    path = tmp_path / "many.pdf"
    path.write_bytes(marked_pdf(range(100, 140)))

    def script(request: ChatRequest) -> Step:
        return status(400) if request.marker == 100 else answer(delay=0.5)

    with FaultServer(script) as server:
        documents = _loader(path, server, max_concurrency=30, on_error="skip").load()
        assert server.most_in_flight > 8
    assert len(documents) == 39


async def test_fault_49_the_loop_keeps_ticking(pdf: Path) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    with FaultServer(seconds=0.05) as server:
        ticker = asyncio.create_task(tick())
        async for _ in _loader(pdf, server, max_concurrency=2).alazy_load():
            pass
        ticker.cancel()
    assert ticks > 15


async def test_fifty_loads_at_once_share_one_limit(tmp_path: Path) -> None:
    paths = []
    for number in range(50):
        paths.append(tmp_path / f"{number:02}.pdf")
        paths[-1].write_bytes(marked_pdf([number]))
    with FaultServer(seconds=0.02) as server:
        loads = [_loader(path, server, max_concurrency=5).aload() for path in paths]
        documents = [document for load in await asyncio.gather(*loads) for document in load]
        assert server.most_in_flight <= 5
    assert _markers(documents) == list(range(50))


def test_blank_pages_are_not_sent_and_keep_their_place(tmp_path: Path) -> None:
    document = pymupdf.open(stream=marked_pdf([1, 2]))
    document.new_page(pno=1, width=260, height=390)
    path = tmp_path / "blank.pdf"
    document.save(path)
    with FaultServer() as server:
        documents = _loader(path, server).load()
        assert len(server.requests) == 2
        assert [d.metadata["ocr_status"] for d in documents] == ["ok", "blank", "ok"]
        sent = _loader(path, server, skip_blank=False).load()
        assert len(server.requests) > 4
        assert [d.metadata["page"] for d in sent] == [0, 1, 2]


def test_the_report_counts_pages_tokens_and_statuses(pdf: Path) -> None:
    seen: list[Any] = []
    with FaultServer([status(503), None, None]) as server:  # one at a time, so the first fails
        loader = _loader(pdf, server, pages="1-3", on_page=seen.append, max_concurrency=1)
        loader.load()
    report = loader.report
    assert report.statuses == {"ok": 3}
    assert report.retries == 1
    assert (report.usage.prompt_tokens, report.usage.completion_tokens) == (3 * 273, 3 * 40)
    assert report.pages == seen
    assert [entry.page_number for entry in seen] == [1, 2, 3]
    assert report.ended is not None
    assert "3 pages" in str(report)


def test_an_error_in_the_callback_is_not_swallowed(pdf: Path) -> None:
    def callback(_: object) -> None:
        msg = "mine"
        raise KeyError(msg)

    with FaultServer() as server, pytest.raises(KeyError, match="mine"):
        _loader(pdf, server, on_page=callback).load()


def test_progress_counts_the_pages_known_in_advance(
    pdf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultServer() as server:
        _loader(pdf, server, show_progress=True).load()
        _loader(pdf, server).load()
    err = capsys.readouterr().err
    assert "20/20" in err
    assert err.count("20/20") == 1


async def test_document_mode_gives_one_document_for_each_source(pdf: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pdf"
    other.write_bytes(marked_pdf([7, 8]))
    with FaultServer() as server:
        settings = Settings.create(
            {"base_url": server.base_url, "mode": "document", "page_separator": "\n---\n"}
        )
        report = RunReport()
        made = [d async for d in read_documents([pdf, other], settings, report=report)]
    assert [markers_in(document.text) for document in made] == [list(range(100, 120)), [7, 8]]
    assert made[1].text.count("\n---\n") == 1
    assert len(report.pages) == 22
