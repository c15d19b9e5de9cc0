"""The state folder: only its owner reads it, nothing in it is followed elsewhere."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from deepseek_ocr_loaders.errors import ServerError

__all__ = [
    "open_private",
    "private_folder",
    "read_json",
    "state_root",
    "write_json",
]


def state_root() -> Path:
    """Give the folder of all managed servers of this user on this machine, made if need be.

    `DEEPSEEK_OCR_STATE_DIR` overrides the user's state folder. Each host has its own part, since
    a home folder may be shared by several machines, and a process id means nothing on another.

    Raises:
        ServerError: The folder belongs to someone else, is a link, or cannot be made.
    """
    if given := os.environ.get("DEEPSEEK_OCR_STATE_DIR"):
        root = Path(given).expanduser().absolute()
    else:
        import platformdirs  # noqa: PLC0415 - 16 ms that an overridden folder need not pay

        root = platformdirs.user_state_path("deepseek-ocr-loaders")
        if not _can_make(root):
            root = Path(tempfile.gettempdir()) / f"deepseek-ocr-loaders-{os.geteuid()}"
    host = "".join(c if c.isalnum() or c in "-." else "_" for c in socket.gethostname()) or "host"
    return private_folder(private_folder(root) / host)


def _can_make(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def private_folder(folder: Path) -> Path:
    """Make a folder that only its owner can enter, or check that it is one.

    Raises:
        ServerError: It is a link, no folder, or someone else's: what lies in it is not trusted.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.lstat()
    except OSError as error:
        msg = (
            f"the state folder {folder} cannot be made ({error.strerror}): set "
            "DEEPSEEK_OCR_STATE_DIR to a folder that you can write to"
        )
        raise ServerError(msg) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        msg = (
            f"the state folder {folder} is a link or belongs to another user, so it is not used: "
            "remove it, or set DEEPSEEK_OCR_STATE_DIR to a folder of your own"
        )
        raise ServerError(msg)
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def open_private(path: Path, flags: int) -> int:
    """Open a file of ours without following a link, readable by the owner only."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        draft.unlink()
    with os.fdopen(open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
        json.dump(value, file)
    draft.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read such a file; None where there is none or it is not ours to trust."""
    try:
        with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            value = json.load(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
