"""Faults 26 and 27: threads, and files that are closed whatever happens."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pymupdf
import pytest
from PIL import Image
from support.documents import A4, image_bytes, opened, pdf_bytes

from deepseek_ocr_loaders import render
from deepseek_ocr_loaders.errors import RenderError

if TYPE_CHECKING:
    from collections.abc import Callable

PAGES = [(A4, f"BT /F 40 Tf 20 {780 - 40 * i} Td (Page {i}) Tj ET") for i in range(8)]


def digests(path: Path) -> list[str]:
    with opened(path) as document:
        return [hashlib.sha256(document.picture(i).data).hexdigest() for i in range(8)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "eight.pdf"
    path.write_bytes(pdf_bytes(PAGES))
    return path


def test_fault_26_many_threads_and_documents_draw_the_same_pages(path: Path) -> None:
    expected = digests(path)
    assert len(set(expected)) == 8
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: digests(path), range(40)))
    assert found == [expected] * 40


def test_fault_26_threads_share_one_document(path: Path) -> None:
    expected = digests(path)
    with opened(path) as document, ThreadPoolExecutor(8) as pool:
        order = [i % 8 for i in range(160)]
        found = list(pool.map(lambda i: document.picture(i).data, order))
    assert [hashlib.sha256(data).hexdigest() for data in found] == [expected[i] for i in order]


def test_fault_26_threads_share_one_picture() -> None:
    frames = [Image.new("L", (200, 300), 40 * i) for i in range(6)]
    data = image_bytes(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    with opened(data) as document, ThreadPoolExecutor(6) as pool:
        expected = [document.picture(i).data for i in range(6)]
        assert len(set(expected)) == 6
        found = list(pool.map(lambda i: document.picture(i % 6).data, range(120)))
    assert found == [expected[i % 6] for i in range(120)]


def test_fault_26_every_call_to_mupdf_is_made_under_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []
    loose: list[str] = []

    def is_held() -> bool:
        free: list[bool] = []
        other = threading.Thread(
            target=lambda: free.append(
                render._LOCK.acquire(blocking=False) and not render._LOCK.release()
            )
        )
        other.start()
        other.join()
        return not free[0]

    def spied(original: Callable[..., object], name: str) -> Callable[..., object]:
        def spy(*args: object, **kw: object) -> object:
            (held if is_held() else loose).append(name)
            return original(*args, **kw)

        return spy

    for owner, names in [
        (pymupdf.Document, ["__init__", "close", "load_page", "get_page_labels", "authenticate"]),
        (pymupdf.Page, ["get_displaylist", "get_images", "get_text", "__init__"]),
        (pymupdf.DisplayList, ["get_pixmap"]),
        (pymupdf.Pixmap, ["__init__"]),
    ]:
        for name in names:
            original = getattr(owner, name)

            monkeypatch.setattr(owner, name, spied(original, f"{owner.__name__}.{name}"))
    with opened(path) as document:
        document.picture(0)
        document.text_layer(0)
        document.label(0)
    assert {"Document.__init__", "Document.close", "DisplayList.get_pixmap"} <= set(held)
    assert not loose


def test_fault_26_the_lock_is_free_while_a_page_is_encoded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[bool] = []

    def encode(_image: Image.Image, _pixels: bytes | None) -> tuple[bytes, str]:
        def other() -> None:
            free.append(render._LOCK.acquire(timeout=5))
            render._LOCK.release()

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return b"", "image/png"

    monkeypatch.setattr("deepseek_ocr_loaders.source.encode", encode)
    with opened(path) as document:
        document.picture(0)
    assert free == [True]


def test_fault_26_mupdf_prints_nothing_and_keeps_its_settings(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = pymupdf.TOOLS.mupdf_display_errors(), pymupdf.TOOLS.mupdf_display_warnings()
    with opened(pdf_bytes(PAGES)[:-300].replace(b"Tj", b"Tq")) as document:
        document.picture(0)
    assert (pymupdf.TOOLS.mupdf_display_errors(), pymupdf.TOOLS.mupdf_display_warnings()) == before
    assert capfd.readouterr() == ("", "")


def _draw_in_child(path: Path) -> None:
    with opened(path) as document:
        os._exit(0 if document.picture(0).has_ink else 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fault_26_a_child_forked_while_the_lock_is_held_can_draw(path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with render.mupdf():
            entered.set()
            leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait(60)
    child = multiprocessing.get_context("fork").Process(target=_draw_in_child, args=(path,))
    child.start()
    child.join(60)
    code = child.exitcode
    child.kill()
    leave.set()
    holder.join()
    assert code == 0


def is_open(path: Path) -> bool:
    folder = Path("/proc/self/fd")
    targets = []
    for entry in folder.iterdir():
        try:
            targets.append(entry.readlink())
        except OSError:
            continue
    return path in targets


KINDS = {
    "pdf": pdf_bytes(PAGES),
    "tiff": image_bytes(Image.new("L", (90, 90)), "TIFF"),
    "png": image_bytes(Image.new("L", (90, 90)), "PNG"),
    "gif": image_bytes(Image.new("L", (90, 90)), "GIF"),
}
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


@needs_proc
@pytest.mark.parametrize("kind", KINDS)
def test_fault_27_file_is_closed_at_the_end(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(KINDS[kind])
    with opened(path) as document:
        document.picture(0)
        assert is_open(path)
    assert not is_open(path)
    document.close()
    document.close()
    with pytest.raises(RenderError, match="closed"):
        document.picture(0)


@needs_proc
@pytest.mark.parametrize("kind", KINDS)
def test_fault_27_file_is_closed_on_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(KINDS[kind])
    with pytest.raises(RenderError), opened(path) as document:
        document.picture(99)
    assert not is_open(path)


@needs_proc
@pytest.mark.parametrize("kind", KINDS)
def test_fault_27_file_is_closed_by_garbage_collection(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(KINDS[kind])
    document = opened(path)
    document.picture(0)
    assert is_open(path)
    del document
    gc.collect()
    assert not is_open(path)


@needs_proc
@pytest.mark.parametrize(
    "data",
    [
        pdf_bytes([]),
        b"%PDF-1.7\n" + bytes(99),
        b"\x89PNG\r\n\x1a\n",
        b"II*\0\xff\xff\xff\xff",
        b"zzz",
    ],
)
def test_fault_27_file_that_cannot_be_opened_is_closed(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.pdf"
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"bad\.pdf"):
        opened(path)
    gc.collect()
    assert not is_open(path)


def test_fault_27_close_waits_for_a_page_that_is_being_drawn(path: Path) -> None:
    document = opened(path)
    started = threading.Event()
    results: list[object] = []

    def draw() -> None:
        started.set()
        for _ in range(20):
            try:
                results.append(document.picture(0).has_ink)
            except RenderError as error:
                results.append(str(error))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait(60)
    document.close()
    for thread in threads:
        thread.join(60)
    assert len(results) == 80
    assert all(result is True or "closed" in str(result) for result in results)


def test_fault_27_file_is_not_read_into_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bytes:
        raise AssertionError

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with opened(path) as document:
        assert document.info.content_hash == hashlib.sha256(pdf_bytes(PAGES)).hexdigest()
        assert document.picture(0).has_ink
