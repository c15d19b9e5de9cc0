"""The engine's output: drained as it comes, bounded on disk, without secrets."""

from __future__ import annotations

import codecs
import os
import re
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.server.files import open_private
from deepseek_ocr_loaders.server.stages import stage_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["EngineLog", "read_tail"]

_TAIL_LINES = 120
_LONGEST_LINE = 16_384
# Asked every two seconds, it would push the cause of a death out of the end of the log.
_OWN_QUESTION = re.compile(r'"GET /health HTTP/1\.\d" 200')
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class EngineLog:
    """Writes what an engine says to a file and its predecessor, and keeps the end at hand.

    Args:
        path: The file; the one before it gets `.1` appended.
        secrets: Texts that are replaced by `***`.
        limit: Bytes after which a new file is begun.
    """

    def __init__(self, path: Path, secrets: Iterable[str] = (), limit: int = 4_000_000) -> None:
        self.path = path
        self.stage = ""
        self._secrets = [text for text in secrets if len(text) >= 6]
        self._limit = limit
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._file = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._size = os.fstat(self._file).st_size

    def feed(self, data: bytes) -> None:
        """Take output in, as it comes from the pipe; only whole lines are written."""
        text = self._rest + self._decoder.decode(data)
        # A progress bar writes a carriage return where others write a new line.
        *lines, self._rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = ""
        self._take(lines)

    def note(self, line: str) -> None:
        """Write a line of our own."""
        self.flush()
        self._take([f"[deepseek-ocr-loaders] {line}"])

    def flush(self) -> None:
        """Write the unfinished last line, when no more will come."""
        rest, self._rest = self._rest, ""
        if rest:
            self._take([rest])

    def forget(self) -> None:
        """Begin a new end: what an earlier process said explains nothing about the next."""
        self.flush()
        self._lines.clear()
        self.stage = ""

    @property
    def tail(self) -> str:
        """The last lines, at most about 8,000 characters."""
        return "\n".join(filter(None, [*self._lines, self._clean(self._rest)]))[-8_000:]

    def close(self) -> None:
        """Write what is left and close the file."""
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file = -1

    def _take(self, lines: list[str]) -> None:
        out = []
        for raw in lines:
            line = self._clean(raw)
            if not line or _OWN_QUESTION.search(line):
                continue
            self._lines.append(line[:2_000])
            self.stage = stage_of(line) or self.stage
            out.append(line + "\n")
        data = "".join(out).encode()
        if self._size + len(data) > self._limit:
            self._turn()
        # A full disk must not end the server that is being logged.
        with suppress(OSError):
            self._size += os.write(self._file, data)

    def _clean(self, line: str) -> str:
        line = _CONTROL.sub("", line).rstrip()
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return line

    def _turn(self) -> None:
        with suppress(OSError):
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            os.close(self._file)
            self._file = open_private(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._size = os.fstat(self._file).st_size


def read_tail(path: Path, characters: int = 8_000) -> str:
    """Give the end of a log file; empty where it cannot be read."""
    try:
        with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - characters))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
