"""One source, a list or a folder, as the single sources in it, one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders.errors import ConfigurationError, EmptySourceError, SourceError
from deepseek_ocr_loaders.fetch import without_secrets
from deepseek_ocr_loaders.inputs import is_blob, is_stream, remote_file_system, scheme
from deepseek_ocr_loaders.sniff import has_known_suffix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

__all__ = ["expand"]


def expand(
    source: object, *, fs: AbstractFileSystem | None = None, glob: str | None = None
) -> Iterator[object]:
    """Give the single sources in `source`, lazily.

    A list, a tuple or another iterable gives what is in it; a folder its files, sorted, those of
    subfolders included; anything else is given as it is. Hidden files and files whose suffix is
    not that of a PDF or picture are left out unless `glob` asks for them, and a link to a folder
    is not followed.

    Args:
        source: Whatever `open_source` takes, or a collection or folder of it.
        fs: The file system that paths belong to.
        glob: Which files of a folder, for example `**/*.pdf`; all that can be read by default.

    Raises:
        EmptySourceError: There is nothing in the list or the folder.
        ConfigurationError: The pattern cannot be used.
        SourceError: A folder in it cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fsdecode(source)
        found: Iterator[object] | None = _in_folder(path, fs=fs, glob=glob)
        if found is None:
            yield source
            return
        label, what = without_secrets(path), "folder has no file that can be read"
    elif (
        isinstance(source, (bytes, bytearray, memoryview, Mapping))
        or is_stream(source)
        or is_blob(source)
        or not isinstance(source, Iterable)
    ):
        yield source
        return
    else:
        found = (single for item in source for single in expand(item, fs=fs, glob=glob))
        label, what = type(source).__name__, "list of sources is empty"
    empty = True
    for item in found:
        empty = False
        yield item
    if empty:
        pattern = f" for the pattern {glob!r}" if glob else ""
        msg = f"{label}: the {what}{pattern}"
        raise EmptySourceError(msg, source=label)


def _in_folder(
    path: str, *, fs: AbstractFileSystem | None, glob: str | None
) -> Iterator[object] | None:
    if not path.strip():  # `Path` would take it for the working folder
        return None
    if fs is not None:
        return _remote(fs, path, glob) if _is_remote_folder(fs, path) else None
    if scheme(path) not in {"", "http", "https"}:
        remote, inner = remote_file_system(path)
        if not _is_remote_folder(remote, inner):
            return None
        return (remote.unstrip_protocol(name) for name in _remote(remote, inner, glob))
    try:
        folder = Path(path).expanduser()
        is_folder = not scheme(path) and folder.is_dir()
    except (OSError, ValueError, RuntimeError):
        is_folder = False  # opening it will say what is wrong
    if not is_folder:
        return None
    return _matching(folder, glob) if glob else _walk(folder)


def _walk(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        msg = f"the folder {folder} cannot be read: {error.strerror}"
        raise SourceError(msg, source=str(folder)) from None
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        elif entry.is_file() and has_known_suffix(entry.name):
            yield Path(entry.path)


def _matching(folder: Path, glob: str) -> Iterator[Path]:
    try:
        yield from sorted(path for path in folder.glob(glob) if path.is_file())
    except (ValueError, NotImplementedError) as error:
        msg = f"glob={glob!r} is not a pattern for files in a folder: {error}"
        raise ConfigurationError(msg) from None


def _is_remote_folder(fs: Any, path: str) -> bool:
    try:
        return bool(fs.isdir(path))
    except Exception:  # noqa: BLE001 - any library may be behind it; opening it will say what is wrong
        return False


def _remote(fs: Any, path: str, glob: str | None) -> Iterator[str]:
    try:
        names: Any = fs.glob(f"{path.rstrip('/')}/{glob}") if glob else fs.find(path)
    except Exception as error:
        label = without_secrets(path)
        msg = f"the folder {label} cannot be read: {type(error).__name__}"
        raise SourceError(msg, source=label) from error
    for name in sorted(names):
        last = name.rpartition("/")[2]
        if glob or (not last.startswith(".") and has_known_suffix(last)):
            yield name
