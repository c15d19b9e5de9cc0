"""Finished pages on disk, so that a run that was cut off goes on where it stopped.

What is kept is what the server said, not what was made of it: a better parser applies to old
answers. One file a page, written beside its place and moved there, so that many processes can
share a folder and a killed one leaves nothing half written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from deepseek_ocr_loaders.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PageCache", "cache_folder"]

logger = logging.getLogger(__name__)

FORMAT = "v1"
"""Changes when entries of an older release can no longer be read."""
MAX_BYTES = 1024**3
"""Answers take 5 to 10 kB: more than 100,000 pages."""
_SUFFIX = ".page"
_WRITES_BETWEEN_SWEEPS = 512


def cache_folder(cache: bool | Path) -> Path | None:  # noqa: FBT001 - the setting's own shape
    """Give the folder that the setting `cache` means; None where it is off."""
    if cache is False:
        return None
    if cache is True:
        return Path(platformdirs.user_cache_dir("deepseek-ocr-loaders", appauthor=False)) / "pages"
    return Path(cache).expanduser()


class PageCache:
    """A folder of finished pages.

    Args:
        folder: Made if it is not there.
        max_bytes: Above it, the pages that were not used for the longest time go.

    Raises:
        ConfigurationError: The folder cannot be made.
    """

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder / FORMAT
        self._max_bytes = max_bytes
        self._writes = 0
        self._lock = threading.Lock()
        self._complained = False
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            msg = f"cache: the folder {folder} cannot be made: {error.strerror}"
            raise ConfigurationError(msg) from error

    @staticmethod
    def key(**parts: object) -> str:
        """Give the key for everything that an answer depends on.

        Args:
            **parts: Anything that JSON can hold; none of it can be read from the key.
        """
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> dict[str, Any] | None:
        """Give what was kept under the key; None where there is nothing whole."""
        path = self._path(key)
        try:
            digest, _, text = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        if digest.decode("ascii", "replace") != _digest(key, text):
            logger.warning("a damaged page in the cache is read anew: %s", path.name)
            return None
        with suppress(OSError):
            os.utime(path)  # used: it goes last
        entry = json.loads(text)
        return entry if isinstance(entry, dict) else None

    def put(self, key: str, entry: dict[str, Any]) -> None:
        """Keep a finished page. A full or broken disk costs the entry, never the page."""
        text = json.dumps(entry, separators=(",", ":")).encode()
        path = self._path(key)
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
            part = Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_digest(key, text).encode() + b"\n" + text)
                part.replace(path)
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise
        except OSError as error:
            if not self._complained:
                self._complained = True
                logger.warning("pages cannot be kept in %s: %s", self.folder, error.strerror)
            return
        with self._lock:
            due = self._writes % _WRITES_BETWEEN_SWEEPS == 0
            self._writes += 1
        if due:
            self.sweep()

    def clear(self) -> int:
        """Throw all pages away, and give their number."""
        gone = 0
        for path, _, _ in self._files():
            with suppress(OSError):
                path.unlink()
                gone += path.suffix == _SUFFIX
        return gone

    def sweep(self) -> None:
        """Throw the least recently used pages away until the folder is within its bound."""
        files = sorted(self._files(), key=lambda file: file[1])
        total = sum(size for _, _, size in files)
        for path, _, size in files:
            if total <= self._max_bytes:
                return
            with suppress(OSError):
                path.unlink()
            total -= size

    def __len__(self) -> int:
        return sum(path.suffix == _SUFFIX for path, _, _ in self._files())

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(size for _, _, size in self._files())

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{_SUFFIX}"

    def _files(self) -> Iterator[tuple[Path, float, int]]:
        """Give path, time of last use and size of every file of ours."""
        for path in self.folder.glob("??/*"):
            if path.suffix not in {_SUFFIX, ".part"}:
                continue
            with suppress(OSError):
                found = path.stat()
                yield path, found.st_mtime, found.st_size


def _digest(key: str, text: bytes) -> str:
    # The key is in it: an entry under another's name is as wrong as a damaged one.
    return hashlib.sha256(key.encode() + text).hexdigest()
