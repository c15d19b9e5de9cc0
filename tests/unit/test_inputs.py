"""Everything that can be passed in, and what is said of what cannot."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from langchain_core.documents.base import Blob
from support.documents import A4, WORD, opened, pdf_bytes

from deepseek_ocr_loaders.errors import (
    ConfigurationError,
    EmptySourceError,
    SourceError,
    SourceNotFoundError,
    SourceTooLargeError,
    UnsupportedSourceError,
)
from deepseek_ocr_loaders.settings import Settings
from deepseek_ocr_loaders.source import expand, open_source

PDF = pdf_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.pdf"
    path.write_bytes(PDF)
    return path


@pytest.fixture
def memory() -> Any:
    fs = fsspec.filesystem("memory")
    fs.pipe({"/box/b.pdf": PDF, "/box/a.png": PDF, "/box/deep/c.PDF": PDF, "/box/notes.txt": b"x"})
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


# --- file objects ---------------------------------------------------------------------------


def test_file_object_is_read_from_its_start_and_left_where_it_was() -> None:
    stream = io.BytesIO()
    stream.write(PDF)
    for _ in range(2):
        with opened(stream) as document:
            assert document.info.total_pages == 1
        assert stream.tell() == len(PDF)
    assert not stream.closed


def test_file_object_gives_its_name(path: Path) -> None:
    with path.open("rb") as file, opened(file) as document:
        assert (document.info.source, document.info.file_name) == (str(path), "a.pdf")
    with opened(io.BytesIO(PDF)) as document:
        assert document.info.source == "stream"
    with opened(io.BytesIO(PDF), name="upload.pdf") as document:
        assert document.info.source == "upload.pdf"


def test_file_object_that_cannot_seek(path: Path) -> None:
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.rest = PDF

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            part, self.rest = self.rest[:7], self.rest[7:]
            buffer[: len(part)] = part
            return len(part)

    with opened(Pipe()) as document:
        assert document.info.total_pages == 1
    reading, writing = os.pipe()
    os.write(writing, PDF)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe, opened(pipe) as document:
        assert document.info.total_pages == 1
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        archive.writestr("a.pdf", PDF)
    with (
        zipfile.ZipFile(path.with_suffix(".zip")) as archive,
        archive.open("a.pdf") as member,
        opened(member) as document,
    ):
        assert document.info.total_pages == 1


def test_file_object_in_text_mode(path: Path) -> None:
    with (
        path.open(encoding="latin1") as file,
        pytest.raises(UnsupportedSourceError, match='"rb"'),
    ):
        opened(file)
    with pytest.raises(UnsupportedSourceError, match='"rb"'):
        opened(io.StringIO("%PDF-1.7"))


def test_file_object_that_is_closed(path: Path) -> None:
    file = path.open("rb")
    file.close()
    with pytest.raises(SourceError, match="closed"):
        opened(file)


def test_file_object_with_asynchronous_read() -> None:
    class Upload:
        filename = "a.pdf"

        async def read(self, _size: int = -1) -> bytes:
            return PDF

    with pytest.raises(UnsupportedSourceError, match="bytes"):
        opened(Upload())


def test_file_object_without_end_is_stopped() -> None:
    class Endless:
        def read(self, size: int) -> bytes:
            return b"\0" * size

    with pytest.raises(SourceTooLargeError, match="max_download_bytes=1000"):
        opened(Endless(), max_download_bytes=1000)


def test_file_object_that_raises() -> None:
    class Broken:
        name = 7

        def read(self, _size: int) -> bytes:
            msg = "disk on fire"
            raise OSError(msg)

    with pytest.raises(SourceError, match="disk on fire"):
        opened(Broken())


# --- blobs ----------------------------------------------------------------------------------


def test_blob_from_path_and_from_data(path: Path) -> None:
    for blob, source in [
        (Blob.from_path(path), str(path)),
        (Blob.from_path(str(path), mime_type="image/png"), str(path)),
        (Blob.from_data(PDF, path="inbox/1.pdf"), "inbox/1.pdf"),
        (Blob.from_data(PDF, metadata={"source": "mail/2.pdf"}), "mail/2.pdf"),
        (Blob.from_data(PDF), "blob"),
        (
            Blob(path=path, metadata={"source": "https://u:p@x.org/a.pdf?key=1"}),
            "https://x.org/a.pdf",
        ),
    ]:
        with opened(blob) as document:
            assert (document.info.source, document.info.total_pages) == (source, 1)


def test_blob_that_has_nothing() -> None:
    with pytest.raises(EmptySourceError):
        opened(Blob.from_data(b""))
    with pytest.raises(SourceNotFoundError):
        opened(Blob.from_path("nowhere.pdf"))


# --- paths ----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["nowhere.pdf", Path("nowhere.pdf"), "a.pdf/b.pdf"])
def test_path_with_nothing_there(path: Path, monkeypatch: pytest.MonkeyPatch, source: Any) -> None:
    monkeypatch.chdir(path.parent)
    with pytest.raises(SourceNotFoundError) as caught:
        opened(source)
    assert str(source) in str(caught.value)


@pytest.mark.parametrize("source", ["", " ", "\n"])
def test_empty_path_is_not_the_working_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(path.parent)
    for fs in (None, LocalFileSystem()):
        (single,) = expand(source, fs=fs)
        with pytest.raises(SourceNotFoundError, match="empty"):
            open_source(single, settings=Settings(), fs=fs)


def test_path_with_a_nul_byte() -> None:
    with pytest.raises(SourceError, match="null"):
        opened("a\0b.pdf")


def test_path_that_is_too_long() -> None:
    with pytest.raises(SourceError, match="name too long"):
        opened("x" * 5000)


def test_path_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "x.pdf"
    folder.mkdir()
    with pytest.raises(SourceError, match="folder"):
        opened(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_path_of_a_pipe_does_not_hang(tmp_path: Path) -> None:
    fifo = tmp_path / "x.pdf"
    os.mkfifo(fifo)
    with pytest.raises(UnsupportedSourceError, match="not a regular file"):
        opened(fifo)
    if Path("/dev/zero").exists():
        with pytest.raises(UnsupportedSourceError, match="not a regular file"):
            opened("/dev/zero")


def test_path_that_may_not_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.open

    def refuse(self: Path, *args: Any, **kw: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied")
        return original(self, *args, **kw)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SourceError, match=r"a\.pdf may not be read"):
        opened(path)


def test_path_through_a_link_and_from_home(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = path.with_name("link.pdf")
    link.symlink_to(path)
    monkeypatch.setenv("HOME", str(path.parent))
    for source in (link, "~/a.pdf"):
        with opened(source) as document:
            assert document.info.source == str(source)


@pytest.mark.parametrize("source", [None, 7, 3.5, {"a": 1}, object(), [1], True])
def test_what_is_no_source_is_named(source: object) -> None:
    with pytest.raises(UnsupportedSourceError, match=type(source).__name__):
        opened(source)


# --- fsspec ---------------------------------------------------------------------------------


def test_fsspec_path_and_address(memory: Any) -> None:
    with open_source("/box/b.pdf", settings=Settings(), fs=memory) as document:
        assert (document.info.source, document.info.file_name) == ("/box/b.pdf", "b.pdf")
    with opened("memory://box/b.pdf") as document:
        assert (document.info.source, document.info.file_name) == ("memory://box/b.pdf", "b.pdf")
    with open_source(Path("/box/b.pdf"), settings=Settings(), fs=memory) as document:
        assert document.info.total_pages == 1


def test_fsspec_of_local_files(path: Path) -> None:
    with open_source(str(path), settings=Settings(), fs=LocalFileSystem()) as document:
        assert document.info.source == str(path)
    with opened(path.as_uri()) as document:
        assert document.info.file_name == "a.pdf"


def test_fsspec_with_nothing_there(memory: Any) -> None:
    with pytest.raises(SourceNotFoundError, match="none"):
        open_source("/box/none.pdf", settings=Settings(), fs=memory)
    with pytest.raises(SourceError):
        opened("memory://box")


def test_fsspec_has_the_same_limit(memory: Any) -> None:
    with pytest.raises(SourceTooLargeError):
        open_source("/box/b.pdf", settings=Settings(max_download_bytes=10), fs=memory)


@pytest.mark.parametrize(
    "address",
    ["ftp://10.0.0.1/a.pdf", "sftp://u:secret@h/a.pdf?secret", "simplecache::http://169.254.169.254/x",
     "zip://a.pdf::memory://x.zip", "gopher://x/", "javascript://x", "smb://u:secret@h/a.pdf"],
)  # fmt: skip
def test_addresses_that_reach_hosts_are_refused(address: str) -> None:
    with pytest.raises(UnsupportedSourceError, match="fs=") as caught:
        opened(address)
    assert "secret" not in str(caught.value)


def test_fsspec_errors_tell_no_secret() -> None:
    class Store(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = "store"

        def _open(self, path: str, *args: Any, **kw: Any) -> Any:
            msg = f"403 for https://bucket/{path}?signature=secret"
            raise RuntimeError(msg)

    with pytest.raises(SourceError, match="RuntimeError") as caught:
        open_source("store://a.pdf?token=secret", settings=Settings(), fs=Store())
    assert "secret" not in str(caught.value) + caught.value.source


# --- lists and folders ----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ["b.pdf", "a.PNG", "sub/c.tiff", "sub/deep/d.jpeg", "notes.txt", ".hidden.pdf",
                 "._b.pdf", ".git/e.pdf", "z.docx", "nosuffix"]:  # fmt: skip
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PDF)
    (tmp_path / "in" / "folder.pdf").mkdir()
    (tmp_path / "in" / "folder.pdf" / "f.webp").write_bytes(PDF)
    return tmp_path / "in"


def names(folder: Path, found: Any) -> list[str]:
    return [Path(item).relative_to(folder).as_posix() for item in found]


def test_folder_gives_its_files_sorted(folder: Path) -> None:
    expected = ["a.PNG", "b.pdf", "folder.pdf/f.webp", "sub/c.tiff", "sub/deep/d.jpeg"]
    assert names(folder, expand(folder)) == expected
    assert names(folder, expand(str(folder))) == expected


def test_folder_with_a_pattern(folder: Path) -> None:
    assert names(folder, expand(folder, glob="*.pdf")) == [
        ".hidden.pdf",
        "._b.pdf",
        "b.pdf",
    ] or names(folder, expand(folder, glob="*.pdf")) == ["._b.pdf", ".hidden.pdf", "b.pdf"]
    assert names(folder, expand(folder, glob="sub/**/*.*")) == ["sub/c.tiff", "sub/deep/d.jpeg"]
    assert names(folder, expand(folder, glob="*.txt")) == ["notes.txt"]


def test_folder_links(folder: Path) -> None:
    (folder / "loop").symlink_to(folder)
    (folder / "l.pdf").symlink_to(folder / "b.pdf")
    (folder / "gone.pdf").symlink_to(folder / "nowhere")
    found = names(folder, expand(folder))
    assert "l.pdf" in found
    assert "gone.pdf" not in found
    assert not [name for name in found if name.startswith("loop/")]
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert "b.pdf" in names(link, expand(link))


@pytest.mark.parametrize("glob", [None, "*.pdf"])
def test_folder_with_nothing_in_it(tmp_path: Path, glob: str | None) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(EmptySourceError, match=str(tmp_path)):
        list(expand(tmp_path, glob=glob))


@pytest.mark.parametrize("glob", ["/etc/*"])
def test_folder_with_an_impossible_pattern(folder: Path, glob: str) -> None:
    with pytest.raises(ConfigurationError, match="glob"):
        list(expand(folder, glob=glob))


def test_folder_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match=r"sub.*Permission denied"):
        list(expand(folder))


def test_folder_is_walked_lazily(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    original = os.scandir

    def spy(path: Any) -> Any:
        seen.append(Path(path).name)
        return original(path)

    monkeypatch.setattr(os, "scandir", spy)
    next(expand(folder))
    assert seen == ["in"]


def test_folder_in_a_file_system(memory: Any) -> None:
    assert list(expand("/box", fs=memory)) == ["/box/a.png", "/box/b.pdf", "/box/deep/c.PDF"]
    assert list(expand("/box", fs=memory, glob="*.txt")) == ["/box/notes.txt"]
    found = list(expand("memory://box"))
    assert found == ["memory:///box/a.png", "memory:///box/b.pdf", "memory:///box/deep/c.PDF"]
    for item in found:
        with opened(item) as document:
            assert document.info.total_pages == 1
    assert list(expand("/box/b.pdf", fs=memory)) == ["/box/b.pdf"]


def test_lists_are_flattened_lazily(folder: Path) -> None:
    def source() -> Any:
        yield "one.pdf"
        yield [Path("two.pdf"), (b"three", folder)]
        raise AssertionError

    found = expand(source())
    assert [next(found) for _ in range(4)] == [
        "one.pdf",
        Path("two.pdf"),
        b"three",
        folder / "a.PNG",
    ]


@pytest.mark.parametrize(
    "single",
    [b"bytes", bytearray(b"b"), memoryview(b"b"), io.BytesIO(PDF), io.StringIO("a\nb"), 7, None,
     Blob.from_data(PDF), "https://example.org/a.pdf", "nowhere.pdf", "a\0b", {"a": 1}],
)  # fmt: skip
def test_single_things_are_given_as_they_are(single: object) -> None:
    assert list(expand(single)) == [single]


@pytest.mark.parametrize("empty", [[], (), iter([]), set()])
def test_list_with_nothing_in_it(empty: object) -> None:
    with pytest.raises(EmptySourceError, match="empty"):
        list(expand(empty))


def test_pages_of_an_opened_folder(folder: Path) -> None:
    (folder / "b.pdf").write_bytes(pdf_bytes([(A4, WORD)] * 2))
    total = 0
    for item in expand(folder):
        with opened(item) as document:
            total += document.info.total_pages
    assert total == 6
