"""How a run gets its server: the user's own, one at an address, or the shared managed one."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import SecretStr

from deepseek_ocr_loaders.endpoint import Endpoint
from deepseek_ocr_loaders.engines.base import ServerOptions
from deepseek_ocr_loaders.engines.select import choose
from deepseek_ocr_loaders.errors import (
    ConfigurationError,
    ModelNotFoundError,
    ServerDiedError,
    ServerUnreachableError,
)
from deepseek_ocr_loaders.server.attach import await_ready, refuse_windows
from deepseek_ocr_loaders.server.copies import Copies
from deepseek_ocr_loaders.server.discovery import discover, is_alive
from deepseek_ocr_loaders.server.state import ServerFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepseek_ocr_loaders.endpoint import EndpointProvider
    from deepseek_ocr_loaders.server.handle import DeepSeekOCRServer
    from deepseek_ocr_loaders.server.state import ServerState
    from deepseek_ocr_loaders.settings import Settings

__all__ = ["ForeignProvider", "ManagedProvider", "folder_of", "options_of", "provider_for"]

logger = logging.getLogger(__name__)

START_TIMEOUT = 1800.0
FOREIGN_RETURN = 10.0
"""Seconds that a server at an address has to come back."""
EMBEDDED_MODEL = "rapidocr"

T = TypeVar("T")


def options_of(engine: str, model: str | None, **given: Any) -> ServerOptions:
    """Give the options of a managed server, with an engine that is decided.

    Raises:
        NoEngineError: `auto`, and nothing here can read a page.
        ModelNotFoundError: A model that the engine does not have.
    """
    chosen = choose(engine)
    if chosen == "rapidocr":
        if model not in {None, EMBEDDED_MODEL} and engine != "auto":
            msg = f"the embedded engine has only its own models, not {model!r}: leave model out"
            raise ModelNotFoundError(msg)
        model = EMBEDDED_MODEL
    elif model is None:
        from deepseek_ocr_loaders.engines.vllm import DEFAULT_MODEL  # noqa: PLC0415

        model = DEFAULT_MODEL
    return ServerOptions(engine=chosen, model=_absolute(model), **given)


def _absolute(model: str) -> str:
    # The supervisor works in another folder than the user's program.
    from pathlib import Path  # noqa: PLC0415

    path = Path(model).expanduser()
    return str(path.absolute()) if path.is_dir() or model.startswith((".", "~")) else model


def folder_of(options: ServerOptions) -> ServerFolder:
    """Give the folder of the server with these options."""
    executable = ""
    if options.engine == "vllm":
        from deepseek_ocr_loaders.engines.vllm import find  # noqa: PLC0415

        found = find()
        executable = f"{' '.join(found.command)} {found.version}" if found else ""
    return ServerFolder.of(options, executable)


def _kept_up(engine: str, model: str | None) -> ServerFolder | None:
    """Find a server that `serve` keeps up and that does what is asked, whatever its options."""
    for folder in ServerFolder.all():
        state = folder.read() if folder.has_owner() else None
        if state is None or not state.alive:
            continue
        fits_engine = engine in {"auto", state.engine}
        fits_model = model in {None, state.model}
        if folder.is_first and fits_engine and fits_model and folder.is_kept(state):
            return folder
    return None


async def _in_thread(work: Callable[[Callable[[], bool]], T]) -> T:
    """Run work that waits, in a thread that gives up when this task is cancelled."""
    cancelled = threading.Event()
    try:
        return await asyncio.to_thread(work, cancelled.is_set)
    except asyncio.CancelledError:
        cancelled.set()
        raise


def endpoint_of(state: ServerState) -> Endpoint:
    """Give the address of a managed server that is ready."""
    return Endpoint(
        base_url=state.base_url,
        model=state.model,
        engine="vllm" if state.engine in {"vllm", "docker"} else state.engine,
        reader=state.reader or state.model,
        version=state.version,
        max_model_len=state.max_model_len,
        max_concurrency=state.max_concurrency,
        api_key=SecretStr(state.api_key),
        generation=state.generation,
        copy=state.copy,
    )


class ManagedProvider:
    """A server of ours: shared with all who ask for the same, ended after the last of them.

    Args:
        engine: Which engine; `auto` decides when the server is needed.
        model: A hub id or folder; None takes the engine's own.
        start_timeout: Seconds to wait for it.
    """

    def __init__(
        self, engine: str, model: str | None, *, start_timeout: float = START_TIMEOUT
    ) -> None:
        self._engine = engine
        self._model = model
        self._start_timeout = start_timeout
        self._copies: Copies | None = None
        self._lock = threading.Lock()

    async def acquire(self) -> list[Endpoint]:
        """Give the server, started if need be; more than one where they share a large GPU."""
        return await _in_thread(self._acquire)

    def _acquire(self, cancelled: Callable[[], bool]) -> list[Endpoint]:
        refuse_windows()
        if folder := _kept_up(self._engine, self._model):
            options = folder.options()
        else:
            options = options_of(self._engine, self._model)
            folder = folder_of(options)
        copies = Copies(folder, options)
        states = copies.acquire(timeout=self._start_timeout, cancelled=cancelled)
        with self._lock:
            if cancelled():
                # Nobody waits for the answer any more, so nobody would release it.
                copies.release()
            else:
                self._copies = copies
        return [endpoint_of(state) for state in states]

    async def recover(self, failed: Endpoint) -> Endpoint | None:
        """Wait for the server's restart; start it anew if even its supervisor was killed."""
        if self._copies is None:
            return successor(await self.acquire(), failed)
        return await recover_managed(self._copies, failed, timeout=self._start_timeout)

    async def release(self) -> None:
        """Say that this run needs it no more; the process keeps it for a while."""
        with self._lock:
            copies, self._copies = self._copies, None
        if copies is not None:
            copies.release()


def successor(endpoints: list[Endpoint], failed: Endpoint) -> Endpoint:
    """Give the one that stands where the failed one stood; the first where none does."""
    return next((one for one in endpoints if one.copy == failed.copy), endpoints[0])


async def recover_managed(
    copies: Copies,
    failed: Endpoint,
    *,
    timeout: float,  # noqa: ASYNC109
) -> Endpoint | None:
    """Wait until a managed server that stopped answering is ready again.

    Args:
        copies: This user's hold on it and on those beside it.
        failed: As it was when the fault happened.
        timeout: Seconds to wait.

    Returns:
        Its new address; None where it was alive all the time.

    Raises:
        ServerDiedError: It is gone for good.
    """
    hold = copies.hold(failed.copy)
    if hold is None:
        msg = "the server was given back while it was still in use"
        raise ServerDiedError(msg)
    folder = hold.folder
    # A dead engine is seen within two seconds, and until then the server looks healthy.
    for pause in (0.0, 0.5, 1.0, 1.0):
        await asyncio.sleep(pause)
        state = await asyncio.to_thread(folder.read)
        if state is None or state.run != hold.run or state.phase != "ready":
            break
        if state.generation > failed.generation:
            return endpoint_of(state)
        if not await is_alive(failed):
            break
    else:
        return None
    run = hold.run
    if run is None:
        msg = "the server was given back while it was still in use"
        raise ServerDiedError(msg)

    def wait(cancelled: Callable[[], bool]) -> ServerState:
        try:
            return await_ready(
                folder, run, timeout=timeout, after=failed.generation, cancelled=cancelled
            )
        except ServerDiedError:
            options = copies.options(failed.copy)
            if options is None or not _supervisor_was_killed(folder):
                raise
            logger.warning("the server's supervisor was killed: the server is started anew")
            return hold.renew(run, options, timeout=timeout, cancelled=cancelled)

    return endpoint_of(await _in_thread(wait))


def _supervisor_was_killed(folder: ServerFolder) -> bool:
    state = folder.read()
    if state is None or folder.has_owner():
        return False
    return state.phase not in {"stopped", "failed"} or "killed" in state.failure.get("message", "")


class ForeignProvider:
    """Servers that someone else runs: found out at first use, never started or stopped.

    Args:
        addresses: Addresses up to and including `/v1`.
        api_key: Sent as a bearer token.
        model: The id that is wanted; None takes the only one there is.
    """

    def __init__(
        self, addresses: tuple[str, ...], api_key: SecretStr | None, model: str | None
    ) -> None:
        self._addresses = addresses
        self._api_key = api_key
        self._model = model

    async def acquire(self) -> list[Endpoint]:
        """Give those that answer.

        Raises:
            ServerError: None does; or one does not serve the model or refuses the key.
        """
        found = await asyncio.gather(*map(self._discover, self._addresses), return_exceptions=True)
        endpoints = [one for one in found if isinstance(one, Endpoint)]
        errors = [one for one in found if isinstance(one, BaseException)]
        for error in errors:
            # One of several that is down is missing, one that is set up wrongly is a mistake.
            if not endpoints or not isinstance(error, ServerUnreachableError):
                raise error
            logger.warning("%s Going on without it.", error)
        return endpoints

    async def _discover(self, address: str) -> Endpoint:
        return await discover(address, api_key=self._api_key, model=self._model)

    async def recover(self, failed: Endpoint) -> Endpoint | None:
        """Wait a minute for a server to come back."""
        if await is_alive(failed):
            return None
        deadline = asyncio.get_running_loop().time() + FOREIGN_RETURN
        while True:
            try:
                found = await self._discover(failed.base_url)
                if await is_alive(found):
                    return replace(found, generation=failed.generation + 1)
            except (ServerUnreachableError, ModelNotFoundError):
                # While it loads, a server may list nothing yet.
                if asyncio.get_running_loop().time() > deadline:
                    raise
            if asyncio.get_running_loop().time() > deadline:
                msg = f"the server at {failed.base_url} is not healthy and did not come back"
                raise ServerUnreachableError(msg, base_url=failed.base_url)
            await asyncio.sleep(1)

    async def release(self) -> None:
        """Do nothing: the server is someone else's."""


class OwnServerProvider:
    """The `DeepSeekOCRServer` that the user gave; started if that was not done yet."""

    def __init__(self, server: DeepSeekOCRServer) -> None:
        self._server = server

    async def acquire(self) -> list[Endpoint]:
        """Give it, started if need be; more than one where they share a large GPU."""
        return await _in_thread(self._server.ensure)

    async def recover(self, failed: Endpoint) -> Endpoint | None:
        """Wait for its restart."""
        return await self._server.recover(failed)

    async def release(self) -> None:
        """Do nothing: the user ends it."""


def provider_for(settings: Settings) -> EndpointProvider:
    """Give the server of a run, as its settings say; nothing is asked or started yet.

    Raises:
        ConfigurationError: `server` is no `DeepSeekOCRServer`.
    """
    if settings.server is not None:
        from deepseek_ocr_loaders.server.handle import DeepSeekOCRServer  # noqa: PLC0415

        if not isinstance(settings.server, DeepSeekOCRServer):
            msg = "server must be a DeepSeekOCRServer; an address is given as base_url"
            raise ConfigurationError(msg)
        return OwnServerProvider(settings.server)
    if settings.base_url:
        return ForeignProvider(settings.base_url, settings.api_key, settings.model)
    return ManagedProvider(settings.engine, settings.model)
