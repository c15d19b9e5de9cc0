"""How a process comes to use a managed server: attach to it, or start it, and wait for it."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders.engines.select import engine_named
from deepseek_ocr_loaders.errors import (
    PortTakenError,
    ServerDiedError,
    ServerError,
    ServerStartError,
    ServerUnreachableError,
)
from deepseek_ocr_loaders.server.diagnose import shared_memory_warning
from deepseek_ocr_loaders.server.files import open_private
from deepseek_ocr_loaders.server.lease import LINGER, Lease, scan
from deepseek_ocr_loaders.server.locks import LockTimeoutError, exclusive
from deepseek_ocr_loaders.server.log import read_tail
from deepseek_ocr_loaders.server.processes import end

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepseek_ocr_loaders.engines.base import ServerOptions
    from deepseek_ocr_loaders.server.state import ServerFolder, ServerState

__all__ = [
    "Attached",
    "attach",
    "await_end",
    "await_exit",
    "await_ready",
    "clean_up",
    "refuse_windows",
]

logger = logging.getLogger(__name__)

SUPERVISOR_START = 30.0
"""Seconds for the supervisor to take its lock and write its first record."""
ENDING = 60.0
"""Seconds that an ending server may take."""
REMIND_EVERY = 30.0
"""Seconds after which a line says that the wait goes on."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A lease on one life of a server: `run` names it."""

    lease: Lease
    run: str


def refuse_windows() -> None:
    """Refuse what cannot work there, in words.

    Raises:
        ServerError: This is Windows.
    """
    if sys.platform == "win32":
        msg = (
            "a managed server needs Linux or macOS: on Windows, run the program under WSL 2, or "
            "give the address of a server as base_url=... or in DEEPSEEK_OCR_BASE_URL"
        )
        raise ServerError(msg)


def attach(
    folder: ServerFolder,
    options: ServerOptions | None,
    *,
    linger: float = LINGER,
    cancelled: Callable[[], bool] = lambda: False,
) -> Attached:
    """Take a lease on the server, and start it if it is not there; it may not be ready yet.

    Args:
        folder: The server.
        options: What to start; None attaches to a running server only.
        linger: Seconds that the server stays after this user, if it was the last.
        cancelled: Asked while waiting; True gives up.

    Raises:
        ServerUnreachableError: It is not running, and must not be started from here.
        ServerStartError: The engine is not installed, or the supervisor does not start.
        ServerError: An earlier server of these options cannot be ended.
    """
    refuse_windows()
    deadline = time.monotonic() + ENDING
    while True:
        try:
            with exclusive(folder.gate, timeout=SUPERVISOR_START + 10, cancelled=cancelled):
                if not folder.has_owner():
                    if options is None:
                        raise _not_running(folder)
                    return _start(folder, options, linger)
                state = folder.read()
                if state is not None and state.alive:
                    return Attached(Lease.take(folder, linger=linger), state.run)
        except LockTimeoutError:
            if cancelled():
                raise _cancelled() from None
        # It is on its way out: a new one may start when it is gone.
        if cancelled():
            raise _cancelled()
        if time.monotonic() > deadline:
            msg = (
                "the server does not come to its end; `deepseek-ocr-loaders stop` ends it by force "
                f"(its log: {folder.log})"
            )
            raise ServerError(msg)
        time.sleep(0.05)


def _not_running(folder: ServerFolder) -> ServerUnreachableError:
    msg = (
        "the server is not running any more, and a worker only attaches to one: keep the "
        "DeepSeekOCRServer of the main program open while workers use it"
    )
    del folder
    return ServerUnreachableError(msg, base_url="")


def _cancelled() -> ServerError:
    return ServerError("the wait for the server was cancelled")


def _start(folder: ServerFolder, options: ServerOptions, linger: float) -> Attached:
    """Start a supervisor; the gate is held."""
    engine = engine_named(options.engine)
    if reason := engine.unavailable():
        msg = f"the engine {options.engine} cannot be started: {reason}"
        raise ServerStartError(msg, hint=reason)
    clean_up(folder)
    scan(folder, tidy=True)
    folder.keep.unlink(missing_ok=True)
    if options.engine in {"vllm", "docker"} and (warning := shared_memory_warning()):
        logger.warning("%s", warning)
    folder.write_options(options)
    run = secrets.token_hex(8)
    # Taken before there is a supervisor, which would otherwise find that nobody wants it.
    lease = Lease.take(folder, linger=linger)
    try:
        _spawn_supervisor(folder, run)
    except BaseException:
        lease.drop(linger=0)
        raise
    return Attached(lease, run)


def _spawn_supervisor(folder: ServerFolder, run: str) -> None:
    report = folder.path / "supervisor.log"
    output = open_private(report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        process = subprocess.Popen(
            [
                sys.executable or "python3",
                "-m",
                "deepseek_ocr_loaders.server.supervisor",
                str(folder.path),
                run,
            ],
            # A folder of ours: `-m` looks for modules there first.
            cwd=folder.path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)
    deadline = time.monotonic() + SUPERVISOR_START
    while True:
        state = folder.read()
        if state is not None and state.run == run:
            break
        if process.poll() is not None or time.monotonic() > deadline:
            tail = read_tail(report)
            msg = f"the supervisor of the server did not start (its log: {report})\n{tail}"
            raise ServerStartError(msg, exit_code=process.returncode, log_tail=tail)
        time.sleep(0.01)
    _children.append(process)


_children: list[subprocess.Popen[bytes]] = []
"""Supervisors that this process started, kept so that each can be collected when it has ended."""


def _collect() -> None:
    _children[:] = [child for child in _children if child.poll() is None]


def clean_up(folder: ServerFolder) -> None:
    """End what a killed supervisor left behind; the gate is held and there is no supervisor.

    Raises:
        ServerError: Some of it cannot be ended.
    """
    state = folder.read()
    if state is None or state.phase in {"stopped", "failed"} or not folder.from_this_boot(state):
        return
    if left := end(state.family):
        pids = ", ".join(str(process.pid) for process in left)
        msg = f"processes of an earlier server cannot be ended and may hold the GPU: {pids}"
        raise ServerError(msg)
    state.phase = "failed"
    state.api_key = ""
    state.failure = {"kind": "died", "message": "The server's supervisor was killed."}
    folder.write(state)


def await_ready(
    folder: ServerFolder,
    run: str,
    *,
    timeout: float,
    after: int = -1,
    cancelled: Callable[[], bool] = lambda: False,
) -> ServerState:
    """Wait until this life of the server is ready, and log what it is doing meanwhile.

    Args:
        folder: The server.
        run: Which life of it.
        timeout: Seconds to wait.
        after: A generation that is not enough, because it has died.
        cancelled: Asked while waiting; True gives up.

    Raises:
        ServerStartError: It failed, or the time is up; with the cause and the end of its log.
        ServerDiedError: It was ready once and will not be again.
    """
    began = told_at = time.monotonic()
    told = ""
    while True:
        has_owner = folder.has_owner()
        state = folder.read()
        if state is None or state.run != run or (not has_owner and state.phase != "failed"):
            raise failure_of(folder, state if state is not None and state.run == run else None)
        if state.phase in {"failed", "stopped", "stopping"}:
            if state.phase != "stopping":
                await_exit(folder, state)
                raise failure_of(folder, state)
        elif state.phase == "ready" and state.generation > after:
            if told:
                logger.info("the %s server is ready after %.0f s", state.engine, _since(began))
            return state
        now = time.monotonic()
        if state.stage != told or now - told_at > REMIND_EVERY:
            told, told_at = state.stage, now
            logger.info(
                "waiting for the %s server%s (%s, %.0f s): %s",
                state.engine,
                f" number {state.copy + 1}" if state.copy else "",
                state.model,
                now - began,
                state.stage or "starting",
            )
        if cancelled():
            raise _cancelled()
        if now - began > timeout:
            tail = read_tail(folder.log)
            msg = (
                f"the server was not ready within {timeout:.0f} s; it was still alive and "
                f"{state.stage or 'starting'}. A first start downloads and compiles: give it more "
                f"time with start_timeout=.\nThe end of its log ({folder.log}):\n{tail}"
            )
            raise ServerStartError(msg, log_tail=tail)
        time.sleep(0.05 if now - began < 5 else 0.2)


def _since(began: float) -> float:
    return time.monotonic() - began


def failure_of(folder: ServerFolder, state: ServerState | None) -> ServerError:
    """Make an error of the record of a failed server."""
    record: dict[str, Any] = state.failure if state is not None else {}
    message = record.get("message") or "The server has ended."
    hint, tail = record.get("hint") or "", record.get("log_tail") or ""
    if not tail and record.get("kind") not in {"stopped", "port"}:
        tail = read_tail(folder.log, 4000)
    text = message
    if hint and hint not in message:
        text += f"\n{hint}"
    if tail:
        text += f"\nThe end of its log ({folder.log}):\n{tail}"
    if "memory" in hint and (others := _other_servers(folder)):
        text += (
            f"\nManaged servers with other settings run at the same time: {others}. Use the same "
        )
        text += "settings to share one, or end them: deepseek-ocr-loaders stop"
    if record.get("kind") == "port":
        return PortTakenError(text)
    kind = ServerStartError if record.get("kind") == "start" else ServerDiedError
    return kind(text, hint=hint, exit_code=record.get("exit_code"), log_tail=tail)


def _other_servers(folder: ServerFolder) -> str:
    others = [
        f"{state.engine} {state.model} (pid {state.supervisor.pid})"
        for other in type(folder).all()
        if other.group != folder.group and other.has_owner() and (state := other.read()) is not None
    ]
    return ", ".join(others)


def await_exit(folder: ServerFolder, state: ServerState) -> None:
    """Wait for the last instant of a supervisor, which says that it is done before it is gone."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        _collect()
        if not folder.from_this_boot(state) or not state.supervisor.alive():
            return
        time.sleep(0.005)


def await_end(folder: ServerFolder, run: str, *, timeout: float = ENDING) -> bool:
    """Wait until this life of the server is over, unless others use it.

    Returns:
        True when its processes are gone; False where it lives on for others.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        _collect()
        has_owner = folder.has_owner()
        state = folder.read()
        if state is None or state.run != run:
            return True
        if not has_owner:
            await_exit(folder, state)
            return True
        if state.phase not in {"stopping", "stopped", "failed"} and (
            folder.is_kept(state) or scan(folder, tidy=False).pids
        ):
            return False
        time.sleep(0.03)
    return False
