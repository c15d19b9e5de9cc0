"""The managed servers of this user as a whole: keep one up, look at them, stop them."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders.errors import ServerError
from deepseek_ocr_loaders.server.attach import (
    await_end,
    await_exit,
    clean_up,
    failure_of,
    refuse_windows,
)
from deepseek_ocr_loaders.server.copies import Copies
from deepseek_ocr_loaders.server.doctor import Check, doctor
from deepseek_ocr_loaders.server.lease import scan
from deepseek_ocr_loaders.server.locks import LockTimeoutError, exclusive
from deepseek_ocr_loaders.server.processes import identify
from deepseek_ocr_loaders.server.provider import folder_of, options_of
from deepseek_ocr_loaders.server.state import ServerFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepseek_ocr_loaders.engines.base import ServerOptions

__all__ = [
    "Check",
    "ServerStatus",
    "doctor",
    "options_of",
    "serve",
    "status",
    "stop_all",
]


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One managed server, as it is at the moment; it holds no secret.

    Attributes:
        id: The name of its folder.
        engine: `vllm`, `docker` or `rapidocr`.
        model: The id that it serves.
        phase: `starting`, `ready`, `restarting`, `stopping`, `stopped`, `failed`, or `lost` where
            its supervisor was killed and processes of it may live on.
        stage: What it does while it is not ready.
        base_url: Its address.
        pid: The engine's first process; None where there is none.
        supervisor: The supervisor's process; None where it has ended.
        users: The processes that use it.
        kept: True where it stays up without a user.
        generation: How often its engine was started.
        restarts: How often it was restarted in this life.
        started: When this life began, in seconds since 1970.
        version: The engine's version; None where it did not say.
        log_file: Its log.
        message: Why it failed or ended.
    """

    id: str
    engine: str
    model: str
    phase: str
    stage: str
    base_url: str
    pid: int | None
    supervisor: int | None
    users: tuple[int, ...]
    kept: bool
    generation: int
    restarts: int
    started: float
    version: str | None
    log_file: str
    message: str

    @property
    def alive(self) -> bool:
        """True while it has a process."""
        return self.phase in {"starting", "ready", "restarting", "stopping", "lost"}

    def as_dict(self) -> dict[str, Any]:
        """Give it for JSON."""
        return asdict(self)


def _status_of(folder: ServerFolder) -> ServerStatus | None:
    state = folder.read()
    if state is None:
        return None
    has_owner = folder.has_owner()
    phase: str = state.phase
    if not has_owner and phase not in {"stopped", "failed"}:
        phase = "lost" if folder.from_this_boot(state) else "stopped"
    leader = state.family.leader
    return ServerStatus(
        id=folder.path.name,
        engine=state.engine,
        model=state.model,
        phase=phase,
        stage=state.stage,
        base_url=state.base_url,
        pid=leader.pid if leader is not None and leader.alive() else None,
        supervisor=state.supervisor.pid if has_owner else None,
        users=scan(folder, tidy=False).pids,
        kept=has_owner and folder.is_kept(state),
        generation=state.generation,
        restarts=state.restarts,
        started=state.since,
        version=state.version,
        log_file=str(folder.log),
        message=state.failure.get("message", ""),
    )


def status() -> list[ServerStatus]:
    """Give all managed servers that this user has or had on this machine."""
    refuse_windows()
    return [found for found in map(_status_of, ServerFolder.all()) if found is not None]


def serve(
    options: ServerOptions,
    *,
    detach: bool = False,
    start_timeout: float = 1800.0,
    on_ready: Callable[[list[ServerStatus]], None] = lambda _: None,
) -> ServerStatus:
    """Keep a server up, for all loaders on this machine that ask for its engine and model.

    Args:
        options: What to serve; `options_of("auto", None)` decides as a loader does.
        detach: Return when it is ready and leave it up until `stop_all`. Otherwise stay until
            Ctrl-C or until it has ended; loaders that use it then keep it up until they are done.
        start_timeout: Seconds to wait until it is ready.
        on_ready: Called once it is; with more than one where they share a large GPU.

    Returns:
        How it, or the first of them, was when this function ended.

    Raises:
        ServerError: It did not become ready, or died for good.
    """
    copies = Copies(folder_of(options), options)
    kept: list[ServerFolder] = []
    interrupted = False
    holder = None if detach else identify(os.getpid())
    try:
        states = copies.acquire(timeout=start_timeout, linger=0)
        kept += [copies.first.copy(state.copy) for state in states]
        for folder, state in zip(kept, states, strict=True):
            folder.keep_up(state, holder=holder)
        ready = [found for folder in kept if (found := _status_of(folder)) is not None]
        on_ready(ready)
        if detach:
            kept.clear()
            return ready[0]
        return _stay(copies.first, states[0].run, kept[1:])
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        for folder in kept:
            with suppress(OSError):
                folder.keep.unlink()
        # A server that is kept in the background no longer needs this process.
        copies.release(at_once=True)
        for folder in copies.folders if interrupted else ():
            if (last := folder.read()) is not None:
                await_end(folder, last.run)


def _stay(folder: ServerFolder, run: str, others: list[ServerFolder]) -> ServerStatus:
    while folder.has_owner() and (state := folder.read()) is not None and state.run == run:
        for other in [one for one in others if not one.has_owner()]:
            others.remove(other)
            failed = other.read()
            why = failed.failure.get("message", "") if failed is not None else ""
            logger.warning("a server beside the first has ended (%s): %s", other.log, why)
        time.sleep(0.5)
    last = folder.read()
    if last is not None and last.run == run and last.failure.get("kind") != "stopped":
        raise failure_of(folder, last)
    found = _status_of(folder)
    assert found is not None  # noqa: S101 - its record stays when it has ended
    return found


def stop_all(*, timeout: float = 60.0) -> list[ServerStatus]:
    """End every managed server of this user on this machine, whoever uses it.

    Args:
        timeout: Seconds that each may take before its supervisor is killed.

    Returns:
        Those that were ended, as they were before.

    Raises:
        ServerError: Some processes cannot be ended.
    """
    refuse_windows()
    stopped = []
    for folder in ServerFolder.all():
        before = _status_of(folder)
        if before is None or not before.alive:
            continue
        stopped.append(before)
        _stop(folder, timeout)
    return stopped


def _stop(folder: ServerFolder, timeout: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        state = folder.read()
        if state is None or not folder.has_owner():
            break
        # The lock says that a supervisor lives, the record which process it is.
        if folder.from_this_boot(state) and state.supervisor.alive():
            with suppress(ProcessLookupError):
                os.kill(state.supervisor.pid, number)
        deadline = time.monotonic() + timeout
        while folder.has_owner() and time.monotonic() < deadline:
            time.sleep(0.05)
        if not folder.has_owner():
            await_exit(folder, state)
    try:
        with exclusive(folder.gate, timeout=30):
            if folder.has_owner():
                msg = f"the server in {folder.path} was started again while it was being stopped"
                raise ServerError(msg)
            clean_up(folder)
    except LockTimeoutError as error:
        msg = f"the server in {folder.path} is being started or ended by another process"
        raise ServerError(msg) from error
