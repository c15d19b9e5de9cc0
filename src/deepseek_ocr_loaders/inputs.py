"""What a user passes in, as a file on disk or bytes, with a name for it that holds no secret."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders.arrays import is_array, to_png
from deepseek_ocr_loaders.errors import (
    SourceError,
    SourceNotFoundError,
    SourceTooLargeError,
    UnsupportedSourceError,
)
from deepseek_ocr_loaders.fetch import fetch, without_secrets
from deepseek_ocr_loaders.sniff import HEAD_BYTES

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from deepseek_ocr_loaders.settings import Settings

__all__ = ["Content", "is_blob", "is_stream", "read_input", "remote_file_system", "scheme"]

_STORES = frozenset(
    (
        "memory",
        "file",
        "local",
        "s3",
        "s3a",
        "gs",
        "gcs",
        "az",
        "abfs",
        "abfss",
        "adl",
        "oci",
        "oss",
        "hf",
        "dbfs",
    )
)
"""The schemes that fsspec is asked to open: stores that need the user's own configuration. Other
schemes reach hosts that the address names, and only http(s) is checked for that."""


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of one document, on disk or in memory.

    Attributes:
        source: Where it came from, without secrets.
        file_name: The last part of it.
        data: The bytes, or the path of the file that holds them.
    """

    source: str
    file_name: str
    data: Path | bytes = field(repr=False)

    def ends(self) -> tuple[bytes, bytes]:
        """Give the first and the last `HEAD_BYTES` bytes."""
        if isinstance(self.data, bytes):
            return self.data[:HEAD_BYTES], self.data[-HEAD_BYTES:]
        with self.data.open("rb") as file:
            head = file.read(HEAD_BYTES)
            file.seek(max(0, os.fstat(file.fileno()).st_size - HEAD_BYTES))
            return head, file.read(HEAD_BYTES)

    def sha256(self) -> str:
        """Give the SHA-256 of the bytes, in hex, without reading a file into memory."""
        if isinstance(self.data, bytes):
            return hashlib.sha256(self.data).hexdigest()
        with self.data.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def is_stream(source: object) -> bool:
    """Tell whether it is a file object: something that is read from."""
    return callable(getattr(source, "read", None))


def is_blob(source: object) -> bool:
    """Tell whether it is a blob as LangChain has it."""
    return callable(getattr(source, "as_bytes", None)) and hasattr(source, "path")


def read_input(
    source: object, *, settings: Settings, fs: AbstractFileSystem | None, name: str | None
) -> Content:
    """Give the content behind anything that may be passed in.

    Args:
        source: A path, an http(s) or fsspec address, bytes, a binary file object, or a blob with
            `as_bytes` and `path` as LangChain has it.
        settings: For the limits of downloads.
        fs: The file system that a path belongs to.
        name: What to call it instead of its path; needed only for bytes.

    Raises:
        SourceError: It cannot be read; the subclass says why.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _in_memory(bytes(source), name or "bytes")
    if is_blob(source):
        return _read_blob(source, settings=settings, fs=fs, name=name)
    if is_stream(source):
        return _read_stream(source, most=settings.max_download_bytes, name=name)
    if not isinstance(source, (str, os.PathLike)):
        kind = type(source).__name__
        msg = (
            f"a {kind} cannot be read: pass a path, an http(s) address, bytes, a binary file "
            "object, a LangChain Blob, or a list of these"
        )
        raise UnsupportedSourceError(msg, source=kind, kind=kind)
    return _read_path(os.fsdecode(source), settings=settings, fs=fs, name=name)


def _read_path(
    path: str, *, settings: Settings, fs: AbstractFileSystem | None, name: str | None
) -> Content:
    if not path.strip():  # what an unset variable looks like
        msg = "the path is empty: name a file or a folder (the working folder is '.')"
        raise SourceNotFoundError(msg, source=path)
    if fs is not None:
        return _read_remote(fs, path, most=settings.max_download_bytes, name=name)
    protocol = scheme(path)
    if protocol in {"http", "https"}:
        data, file_name = fetch(path, settings)
        return _in_memory(data, name or without_secrets(path), file_name=file_name)
    if protocol:
        remote, inner = remote_file_system(path)
        return _read_remote(
            remote, inner, most=settings.max_download_bytes, name=name or without_secrets(path)
        )
    return _local(path, name)


def scheme(path: str) -> str:
    """Give the scheme of an address in lower case; empty for a path."""
    head, found, _ = path.partition("://")
    return head.lower() if found else ""


def _in_memory(data: bytes, source: str, *, file_name: str = "") -> Content:
    return Content(source, file_name or PurePath(source).name or source, data)


def _local(path: str, name: str | None) -> Content:
    label = name or path
    try:
        where = Path(path).expanduser()
        mode = where.stat().st_mode
        if stat.S_ISREG(mode):
            with where.open("rb"):
                pass
    except (FileNotFoundError, NotADirectoryError):
        msg = f"there is no file {path!r} (working folder: {Path.cwd()})"
        raise SourceNotFoundError(msg, source=label) from None
    except PermissionError:
        msg = f"{path} may not be read by this user: check its permissions"
        raise SourceError(msg, source=label) from None
    except (OSError, ValueError, RuntimeError) as error:
        msg = f"{path!r} is not a path that can be opened: {error}"
        raise SourceError(msg, source=label) from None
    if stat.S_ISDIR(mode):
        msg = f"{path} is a folder where a file is needed"
        raise SourceError(msg, source=label)
    if not stat.S_ISREG(mode):
        # A pipe or a device may never end.
        msg = f"{path} is not a regular file: read it yourself and pass the bytes"
        raise UnsupportedSourceError(msg, source=label, kind="special file")
    return Content(label, PurePath(label).name or label, where)


def _read_blob(
    blob: Any, *, settings: Settings, fs: AbstractFileSystem | None, name: str | None
) -> Content:
    label = name or without_secrets(str(getattr(blob, "source", None) or blob.path or "blob"))
    if getattr(blob, "data", None) is None and blob.path is not None:
        return read_input(blob.path, settings=settings, fs=fs, name=label)
    try:
        data = bytes(blob.as_bytes())
    except Exception as error:
        msg = f"the blob {label} does not give its bytes: {type(error).__name__}"
        raise SourceError(msg, source=label) from error
    return _in_memory(to_png(data, source=label) if is_array(data) else data, label)


def _read_stream(stream: Any, *, most: int, name: str | None) -> Content:
    given = getattr(stream, "name", None)
    label = name or (given if isinstance(given, str) and given else "stream")
    try:
        position = _rewind(stream)
        parts: list[bytes] = []
        size = 0
        while size <= most:
            part = stream.read(min(1 << 24, most + 1 - size))
            if not isinstance(part, (bytes, bytearray, memoryview)):
                break
            if not part:
                break
            parts.append(bytes(part))
            size += len(part)
        if position is not None:
            # The caller may read it again.
            stream.seek(position)
    except Exception as error:
        msg = f"the file object {label} cannot be read: {error}"
        raise SourceError(msg, source=label) from error
    if not isinstance(part, (bytes, bytearray, memoryview)):
        if hasattr(part, "close"):
            part.close()  # a coroutine that nobody awaits would warn
        msg = (
            f"the file object {label} gives {type(part).__name__} where bytes are needed: "
            'open it in binary mode ("rb"); of an upload, pass the bytes or its .file'
        )
        raise UnsupportedSourceError(msg, source=label, kind=type(part).__name__)
    if size > most:
        msg = f"the file object {label} holds more than max_download_bytes={most}"
        raise SourceTooLargeError(msg, source=label)
    return _in_memory(b"".join(parts), label)


def _rewind(stream: Any) -> int | None:
    """Go to the start, wherever the last write left it; None where it cannot be sought in."""
    if not callable(getattr(stream, "seekable", None)) or not stream.seekable():
        return None
    position = int(stream.tell())
    stream.seek(0)
    return position


def remote_file_system(address: str) -> tuple[AbstractFileSystem, str]:
    """Give the fsspec file system of an address such as `s3://bucket/key`, and the path in it.

    Raises:
        SourceError: The scheme is not one of the stores, or its library is missing.
    """
    label = without_secrets(address)
    if "::" in address or scheme(address) not in _STORES:
        msg = (
            f"{label} is not read from its address alone: only http(s) and "
            f"{', '.join(sorted(_STORES))} are; open its file system with fsspec and pass it as fs="
        )
        raise UnsupportedSourceError(msg, source=label, kind=scheme(address))
    from fsspec.core import url_to_fs  # noqa: PLC0415 - 50 ms that few programs need

    open_address: Any = url_to_fs

    try:
        found, path = open_address(address)
    except ImportError as error:
        msg = f"{label} needs a library that is not installed: {error}"
        raise SourceError(msg, source=label) from None
    except Exception as error:
        msg = f"{label} cannot be opened: {type(error).__name__}"
        raise SourceError(msg, source=label) from error
    return found, path


def _read_remote(fs: Any, path: str, *, most: int, name: str | None) -> Content:
    label = name or without_secrets(path)
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if "local" in protocols:
        return _local(str(fs._strip_protocol(path)), name)  # noqa: SLF001 - fsspec's own door for this
    try:
        with fs.open(path, "rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        msg = f"there is no file {label!r} in the file system {protocols[0]!r}"
        raise SourceNotFoundError(msg, source=label) from None
    except IsADirectoryError:
        msg = f"{label} is a folder where a file is needed"
        raise SourceError(msg, source=label) from None
    except Exception as error:
        msg = f"{label} cannot be read from {protocols[0]!r}: {type(error).__name__}"
        raise SourceError(msg, source=label) from error
    if len(data) > most:
        msg = f"{label} is larger than max_download_bytes={most}"
        raise SourceTooLargeError(msg, source=label)
    if not isinstance(data, bytes):
        msg = f"{label} gives {type(data).__name__} where bytes are needed"
        raise UnsupportedSourceError(msg, source=label, kind=type(data).__name__)
    return _in_memory(data, label)
