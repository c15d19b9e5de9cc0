"""The shared server behind a loader, with the embedded engine: real pages in real processes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pymupdf
import pytest
from support.servers import (
    Launch,
    engine_processes,
    folder_in,
    launch,
    marked_processes,
    state_dir,
    state_of,
    wait_for,
)

from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRServer

__all__ = ["launch", "state_dir"]

pytest.importorskip("rapidocr")

WORD = "Harbour"
LOAD = """
import sys
from deepseek_ocr_loaders import DeepSeekOCRLoader
docs = DeepSeekOCRLoader({path!r}, engine="rapidocr").load()
assert {word!r} in docs[0].page_content, docs
print(docs[0].metadata["ocr_engine"], len(docs))
"""


@pytest.fixture(scope="module")
def pdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pdf") / "harbour.pdf"
    with pymupdf.open() as document:
        for number in (1, 2, 3):
            page = document.new_page(width=300, height=200)
            page.insert_text((30, 80), f"{WORD} lights {number}", fontsize=24)
        document.save(path)
    return path


def load(pdf: Path) -> str:
    return LOAD.format(path=str(pdf), word=WORD)


def engine_starts(state_dir: Path) -> int:
    return state_of(state_dir).generation


def test_eight_processes_at_once_start_one_server(
    pdf: Path, state_dir: Path, launch: Launch
) -> None:
    programs = [launch(load(pdf)) for _ in range(8)]
    for one in programs:
        assert one.stdout is not None
        assert one.stdout.read() == "rapidocr 3\n"
        assert one.wait(200) == 0
    assert engine_starts(state_dir) == 1
    log = (folder_in(state_dir).path / "server.log").read_text()
    assert log.count("Started server process") == 1
    wait_for(lambda: not marked_processes(str(state_dir)))
    assert list(folder_in(state_dir).leases.iterdir()) == []


def test_two_loads_of_one_program_share_a_server(pdf: Path, state_dir: Path) -> None:
    for _ in range(2):
        docs = DeepSeekOCRLoader(pdf, engine="rapidocr").load()
        assert [doc.metadata["page"] for doc in docs] == [0, 1, 2]
    assert engine_starts(state_dir) == 1


def test_killed_program_in_the_middle_of_a_page(pdf: Path, state_dir: Path, launch: Launch) -> None:
    user = launch(load(pdf).replace(".load()", ".load() + [1 / 0]"))
    wait_for(lambda: state_of(state_dir).phase == "ready" if engine_processes(state_dir) else False)
    user.kill()
    user.wait()
    wait_for(lambda: not marked_processes(str(state_dir)))


def test_killed_engine_is_restarted_and_every_page_is_read(
    pdf: Path, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with DeepSeekOCRServer(engine="rapidocr") as server:
        pages = DeepSeekOCRLoader(pdf, server=server).lazy_load()
        docs = [next(pages)]
        pid = server.pid
        assert pid is not None
        psutil.Process(pid).kill()
        docs += list(pages)
        assert [doc.metadata["page"] for doc in docs] == [0, 1, 2]
        assert all(WORD in doc.page_content for doc in docs)
        # Read a document after it as well: the server is the restarted one.
        again = DeepSeekOCRLoader(pdf, server=server, pages="2").load()
        assert [doc.metadata["page"] for doc in again] == [1]
        assert server.pid != pid
    assert engine_starts(state_dir) == 2
    assert marked_processes(str(state_dir)) == []


def test_sigterm_to_the_engine_is_a_death_like_another(pdf: Path, state_dir: Path) -> None:
    with DeepSeekOCRServer(engine="rapidocr") as server:
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        docs = DeepSeekOCRLoader(pdf, server=server, pages="1").load()
        assert WORD in docs[0].page_content
        assert server.pid != pid


POOL = """
import multiprocessing, sys
from deepseek_ocr_loaders import DeepSeekOCRLoader, DeepSeekOCRServer

def read(loader):
    return loader.load()[0].page_content

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with DeepSeekOCRServer(engine="rapidocr") as server:
        loader = DeepSeekOCRLoader(sys.argv[2], server=server, pages="1")
        first = read(loader)
        with context.Pool(2) as pool:
            assert pool.map(read, [loader] * 2) == [first] * 2
            implicit = DeepSeekOCRLoader(sys.argv[2], engine="rapidocr", pages="1")
            assert pool.map(read, [implicit]) == [first]
        # The workers have gone; the server is still ours.
        assert read(loader) == first
    print("ok")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_fault_48_workers_attach_to_the_running_server(
    pdf: Path, state_dir: Path, tmp_path: Path, method: str
) -> None:
    program = tmp_path / "pool.py"
    program.write_text(POOL)
    done = subprocess.run(
        [sys.executable, str(program), method, str(pdf)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.stdout == "ok\n", done.stderr
    assert engine_starts(state_dir) == 1


def test_loaders_in_threads_share_a_server(pdf: Path, state_dir: Path) -> None:
    texts: list[str] = []

    def work() -> None:
        texts.append(DeepSeekOCRLoader(pdf, engine="rapidocr", pages="1").load()[0].page_content)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 4
    assert len(set(texts)) == 1
    assert engine_starts(state_dir) == 1


def test_program_ends_without_waiting_for_the_server(
    pdf: Path, state_dir: Path, launch: Launch
) -> None:
    user = launch(load(pdf))
    assert user.wait(120) == 0
    # It stays for a moment, for the next program, and goes by itself.
    assert engine_processes(state_dir)
    wait_for(lambda: not marked_processes(str(state_dir)))
    time.sleep(0.1)
    assert state_of(state_dir).phase == "stopped"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_soak_of_200_cycles_leaves_nothing() -> None:
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "soak_server.py"
    done = subprocess.run(
        [sys.executable, str(script), "--cycles", "200", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["cycles"] == 200
    for what in ("processes_left", "leases_left", "ports_left"):
        assert report[what] == 0
    # After the first tenth nothing grows any more.
    assert report["files_end"] <= report["files_warm"] + 2
    # The pool of a loop's helper threads fills up to its size.
    assert report["threads_end"] <= report["threads_warm"] + 3
    assert report["memory_end"] - report["memory_warm"] < 15
