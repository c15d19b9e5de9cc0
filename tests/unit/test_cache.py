"""Finished pages on disk: what is kept, what is not, and what a damaged folder does."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr
from support.fault_server import (
    FakeProvider,
    FaultServer,
    answer,
    loop,
    marked_picture,
    status,
)
from support.reading import INFO, pairing, read_all, read_one, reader

from deepseek_ocr_loaders import cache as cache_module
from deepseek_ocr_loaders import retry
from deepseek_ocr_loaders.cache import PageCache, cache_folder
from deepseek_ocr_loaders.errors import ConfigurationError
from deepseek_ocr_loaders.page import PageStatus, SourceInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.fault_server import Step


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_backoff", lambda _state: 0.01)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.page"))


async def test_a_finished_page_is_not_sent_again(tmp_path: Path) -> None:
    with FaultServer() as server:
        first = await read_all(server, 5, cache=tmp_path)
        again = await read_all(server, 8, cache=tmp_path)
    assert len(server.requests) == 8
    assert pairing(again) == list(range(8))
    for one, other in zip(first, again, strict=False):
        assert not one.cached
        assert other.cached
        assert other.attempts == ()
        for name in ("blocks", "raw", "status", "usage", "engine", "model", "width", "grounded"):
            assert getattr(one, name) == getattr(other, name)


BAD: dict[str, Step] = {
    "loop": loop(),
    "cut": answer("Body\n\nand", "length"),
    "empty": answer(""),
    "failed": status(500),
}


@pytest.mark.parametrize("fault", BAD.values(), ids=BAD.keys())
async def test_what_is_not_finished_is_never_kept(fault: Step, tmp_path: Path) -> None:
    with FaultServer(lambda _r: fault) as server:
        await read_all(server, 1, cache=tmp_path, retries=0)
    assert not _entries(tmp_path)
    with FaultServer() as server:
        assert pairing(await read_all(server, 1, cache=tmp_path)) == [0]
    assert len(server.requests) == 1


async def test_a_page_that_was_cured_is_kept(tmp_path: Path) -> None:
    with FaultServer([loop()]) as server:
        cured = await read_one(server, cache=tmp_path)
        kept = await read_one(server, cache=tmp_path)
    assert len(server.requests) == 2
    assert kept.cached
    assert kept.blocks == cured.blocks
    assert kept.usage == cured.usage


async def test_halves_come_back_with_their_boxes(tmp_path: Path) -> None:
    def script(request: Any) -> Step:
        if request.index < 3:
            return answer("x", "length")
        name = "Upper" if request.index == 3 else "Lower"
        return answer(f"<|ref|>text<|/ref|><|det|>[[0, 0, 999, 999]]<|/det|>\n{name} half")

    with FaultServer(script) as server:
        read = await read_one(server, cache=tmp_path)
        kept = await read_one(server, cache=tmp_path)
    assert kept.cached
    assert [block.text for block in kept.blocks] == ["Upper half", "Lower half"]
    assert kept.blocks == read.blocks
    assert kept.raw == read.raw


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"prompt": "free"}},
        {"options": {"prompt": "Locate <|ref|>Total<|/ref|> in the image."}},
        {"known": {"reader": "deepseek-ai/DeepSeek-OCR-2"}},
        {"known": {"engine": "rapidocr"}},
        {"number": 1},
        {"kind": "image"},
    ],
)
async def test_whatever_changes_the_answer_changes_the_key(
    change: dict[str, Any], tmp_path: Path
) -> None:
    async def read(
        *,
        options: dict[str, Any] | None = None,
        known: dict[str, Any] | None = None,
        number: int = 0,
        kind: str = "pdf",
    ) -> bool:
        info = SourceInfo("x", "x", "0" * 64, kind, 1)
        provider = FakeProvider(server, **(known or {}))
        async with reader(provider, cache=tmp_path, **(options or {})) as open_reader:
            return (await open_reader.read(info, number, "1", marked_picture(number))).cached

    with FaultServer() as server:
        assert not await read()
        assert await read()
        assert not await read(**change)
        assert await read(**change)
        assert await read()


async def test_what_does_not_change_the_answer_does_not(tmp_path: Path) -> None:
    with FaultServer(api_key="one") as first:
        await read_one(first, cache=tmp_path)
    with FaultServer(api_key="two", version="0.33.0") as second:
        async with reader(
            second, cache=tmp_path, output="raw", tables="markdown", timeout=5, retries=9
        ) as open_reader:
            other = SourceInfo("elsewhere/b.pdf", "b.pdf", "1" * 64, "pdf", 7)
            page = await open_reader.read(other, 6, "vii", marked_picture(0))
    assert page.cached
    assert (page.index, page.label) == (6, "vii")
    assert not second.requests


async def test_no_secret_and_no_path_is_on_disk(tmp_path: Path) -> None:
    with FaultServer(api_key="s3cr3t-key") as server:
        provider = FakeProvider(server, api_key=SecretStr("s3cr3t-key"))
        await read_one(provider, cache=tmp_path)
    (entry,) = _entries(tmp_path)
    text = entry.read_text()
    for word in ("s3cr3t-key", INFO.source, str(server.port)):
        assert word not in text
        assert word not in str(entry.relative_to(tmp_path))
    if os.name == "posix":
        assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    position = data.index(b"marker-")
    data[position] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "one bit": _flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(bytes(range(256))),
    "other JSON": lambda path: path.write_bytes(b"{}\n{}"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
async def test_damaged_entries_are_read_anew(
    damage: Callable[[Path], object], tmp_path: Path
) -> None:
    with FaultServer() as server:
        await read_one(server, cache=tmp_path)
        (entry,) = _entries(tmp_path)
        damage(entry)
        assert not (await read_one(server, cache=tmp_path)).cached
        assert len(server.requests) == 2
        if entry.is_file():
            assert (await read_one(server, cache=tmp_path)).cached


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"said": 7},
        {"said": [{"other": 1}], "usage": {}, "engine": "e", "model": "m"},
        {"said": [], "usage": {"prompt_tokens": 1}, "engine": "e", "model": "m"},
        {"said": [{"text": 5, "finish_reason": 1, "has_ink": 1}], "usage": {}, "engine": "e"},
    ],
)
async def test_whole_entries_of_another_shape_are_read_anew(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    with FaultServer() as server:
        await read_one(server, cache=tmp_path)
        (path,) = _entries(tmp_path)
        PageCache(tmp_path).put(path.stem, entry)
        assert pairing([await read_one(server, cache=tmp_path)]) == [0]
        assert len(server.requests) == 2


async def test_an_answer_that_todays_parser_calls_unfinished_is_read_anew(tmp_path: Path) -> None:
    with FaultServer() as server:
        await read_one(server, cache=tmp_path)
        (path,) = _entries(tmp_path)
        folder = PageCache(tmp_path)
        entry = folder.get(path.stem)
        assert entry is not None
        entry["said"][0]["text"] = "Intro\n" + "Ward office\n" * 1500
        folder.put(path.stem, entry)
        assert not (await read_one(server, cache=tmp_path)).cached
        assert (await read_one(server, cache=tmp_path)).status is PageStatus.OK


def test_entry_under_the_name_of_another(tmp_path: Path) -> None:
    folder = PageCache(tmp_path)
    one, other = PageCache.key(page=1), PageCache.key(page=2)
    folder.put(one, {"page": 1})
    target = folder._path(other)
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(folder._path(one).read_bytes())
    assert folder.get(other) is None
    assert folder.get(one) == {"page": 1}


def test_a_folder_is_cleared_and_nothing_else_in_it(tmp_path: Path) -> None:
    folder = PageCache(tmp_path)
    for number in range(20):
        folder.put(PageCache.key(page=number), {"page": number})
    mine = tmp_path / "thesis.txt"
    mine.write_text("mine")
    assert len(folder) == 20
    assert folder.size > 0
    assert folder.clear() == 20
    assert len(folder) == 0
    assert mine.read_text() == "mine"
    assert folder.get(PageCache.key(page=3)) is None


def test_the_size_is_bounded_and_what_was_used_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_WRITES_BETWEEN_SWEEPS", 10)
    folder = PageCache(tmp_path, max_bytes=20_000)
    keys = [PageCache.key(page=number) for number in range(100)]
    for number, key in enumerate(keys):
        folder.put(key, {"text": "x" * 900})
        os.utime(folder._path(key), (number, number))
        if number >= 5:
            assert folder.get(keys[5]) is not None  # used all the time
    folder.sweep()
    assert folder.size <= 20_000
    assert folder.get(keys[-1]) is not None
    assert folder.get(keys[5]) is not None
    assert folder.get(keys[6]) is None


HAMMER = """
import sys
from pathlib import Path
from deepseek_ocr_loaders.cache import PageCache

number = int(sys.argv[2])
cache = PageCache(Path(sys.argv[1]), max_bytes=40_000)
for turn in range(150):
    key = PageCache.key(page=turn % 30)
    entry = cache.get(key)
    assert entry is None or entry["page"] == turn % 30, entry
    cache.put(key, {"page": turn % 30, "by": number, "text": "x" * (turn * 20)})
    if turn % 60 == 59:
        cache.sweep()
    if turn == 100 and number == 0:
        cache.clear()
"""


def test_many_processes_share_a_folder(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen([sys.executable, "-c", HAMMER, str(tmp_path), str(n)]) for n in range(3)
    ]
    assert [worker.wait(120) for worker in workers] == [0, 0, 0]
    for path in _entries(tmp_path):
        assert PageCache(tmp_path).get(path.stem) is not None
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.skipif(os.name != "posix", reason="needs a file in the way of a folder")
async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with FaultServer() as server, pytest.raises(ConfigurationError, match="cache"):
        reader(server, cache=tmp_path / "file" / "pages")


async def test_a_full_disk_costs_the_entry_not_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(**_options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.tempfile, "mkstemp", full)
    with FaultServer() as server:
        assert pairing(await read_all(server, 5, cache=tmp_path)) == list(range(5))
    assert sum("No space left" in record.message for record in caplog.records) == 1


async def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """The server sees only the missing pages, whatever half-written files were left."""
    with FaultServer(lambda r: status(400) if r.index >= 60 else None) as server:
        await read_all(server, 100, cache=tmp_path)
    left_over = tmp_path / "v1" / "ab"
    left_over.mkdir(parents=True, exist_ok=True)
    (left_over / "tmpxyz.part").write_bytes(b"half")
    with FaultServer() as server:
        results = await read_all(server, 100, cache=tmp_path)
    assert pairing(results) == list(range(100))
    assert len(server.requests) == 40


def test_which_folder_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder(cache=False) is None
    assert cache_folder(cache=tmp_path) == tmp_path
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    found = cache_folder(cache=True)
    assert found is not None
    assert "deepseek-ocr-loaders" in str(found)
    home = cache_folder(cache=cache_module.Path("~/pages"))
    assert home == tmp_path / "pages"


def test_nothing_can_be_read_from_a_key() -> None:
    key = PageCache.key(prompt="Locate the salary", model="m")
    assert len(key) == 64
    assert int(key, 16)
    assert key == PageCache.key(model="m", prompt="Locate the salary")
    assert key != PageCache.key(prompt="Locate the salary", model="n")


def test_an_entry_is_json_after_its_checksum(tmp_path: Path) -> None:
    folder = PageCache(tmp_path)
    key = PageCache.key(page=1)
    folder.put(key, {"text": "Grüße 合計 \\(x\\)"})
    _, _, text = folder._path(key).read_bytes().partition(b"\n")
    assert json.loads(text) == {"text": "Grüße 合計 \\(x\\)"}
