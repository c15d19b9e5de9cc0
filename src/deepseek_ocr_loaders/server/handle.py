"""`DeepSeekOCRServer`: a managed server in the user's hands."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepseek_ocr_loaders.errors import ConfigurationError
from deepseek_ocr_loaders.server.attach import refuse_windows
from deepseek_ocr_loaders.server.copies import Copies
from deepseek_ocr_loaders.server.lease import LINGER
from deepseek_ocr_loaders.server.provider import (
    ForeignProvider,
    endpoint_of,
    folder_of,
    options_of,
    recover_managed,
    successor,
)
from deepseek_ocr_loaders.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from pydantic import SecretStr

    from deepseek_ocr_loaders.endpoint import Endpoint
    from deepseek_ocr_loaders.engines.base import ServerOptions
    from deepseek_ocr_loaders.server.state import ServerFolder

__all__ = ["DeepSeekOCRServer"]


class DeepSeekOCRServer:
    """A server that reads pages: started or attached to at `start`, given back at `stop`.

    One server runs on a machine for the same options (on a large GPU two, used as one), shared by
    all processes that ask for it; it ends when its last user has gone. Use it as a context manager
    (`with` or `async with`); it may be given to any number of loaders and threads. Pickled, or in a
    forked child, it attaches to the running server and never starts or ends one.

    Args:
        engine: `auto`, `vllm`, `docker` or `rapidocr`.
        model: A hub id or a local folder; by default `deepseek-ai/DeepSeek-OCR`.
        base_url: The address of a server that someone else runs; nothing is started then.
        api_key: The key for `base_url`; a server of ours makes its own.
        port: A fixed port; by default a free one.
        gpu_memory_utilization: Share of the GPU's memory, over 0 to 1; by default vLLM's own.
        data_parallel_size: Copies of the model, one a GPU.
        tensor_parallel_size: GPUs that share one copy.
        extra_args: Arguments for the engine's command line; one that is given replaces ours.
        env: Variables for the engine's environment.
        image: Image and tag, for `docker`.
        image_tar: A file that `docker save` wrote, for `docker` without network.
        offline: True forbids to ask the model hub and the image registry.
        start_timeout: Seconds to wait until it is ready; a first start downloads and compiles.
        linger: Seconds that the server waits for a next user if this process ends without `stop`.

    Raises:
        ConfigurationError: Parameters that do not go together.
    """

    def __init__(
        self,
        *,
        engine: str = "auto",
        model: str | None = None,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        port: int | None = None,
        gpu_memory_utilization: float | None = None,
        data_parallel_size: int = 1,
        tensor_parallel_size: int = 1,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        image: str | None = None,
        image_tar: str | Path | None = None,
        offline: bool = False,
        start_timeout: float = 1800.0,
        linger: float = LINGER,
    ) -> None:
        self._given: dict[str, Any] = {
            "port": port,
            "gpu_memory_utilization": gpu_memory_utilization,
            "data_parallel_size": data_parallel_size,
            "tensor_parallel_size": tensor_parallel_size,
            "extra_args": tuple(extra_args),
            "env": tuple(sorted((env or {}).items())),
            "image": image,
            "image_tar": Path(image_tar).expanduser().absolute() if image_tar else None,
            "offline": offline,
        }
        self._check(extra_args)
        self._start_timeout = start_timeout
        self._linger = linger
        # The same rules, and the same environment for what is not given, as in a loader.
        settings = Settings.create(
            {
                "engine": None if engine == "auto" else engine,
                "model": model,
                "base_url": base_url,
                "api_key": api_key,
            }
        )
        self._engine, self._model = settings.engine, settings.model
        self._foreign: ForeignProvider | None = None
        if settings.base_url and (base_url or engine == "auto"):
            self._foreign = ForeignProvider(settings.base_url, settings.api_key, settings.model)
        elif api_key is not None:
            msg = "api_key belongs to base_url: a managed server makes a key of its own"
            raise ConfigurationError(msg)
        self._pid = os.getpid()
        self._attach_only = False
        self._folder: ServerFolder | None = None
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._starting: threading.Event | None = None
        self._copies: Copies | None = None
        self._endpoints: list[Endpoint] = []

    def _check(self, extra_args: Sequence[str]) -> None:
        given = self._given
        share, port = given["gpu_memory_utilization"], given["port"]
        if share is not None and not 0 < share <= 1:
            msg = f"gpu_memory_utilization must be over 0 and at most 1, not {share}"
            raise ConfigurationError(msg)
        if port is not None and not 0 < port < 65536:
            msg = f"port must be 1 to 65535, not {port}; leave it out for a free one"
            raise ConfigurationError(msg)
        if given["data_parallel_size"] < 1 or given["tensor_parallel_size"] < 1:
            msg = "data_parallel_size and tensor_parallel_size count GPUs: 1 or more"
            raise ConfigurationError(msg)
        if isinstance(extra_args, str):
            msg = 'extra_args is a list of arguments, such as ["--max-num-seqs", "64"]'
            raise ConfigurationError(msg)
        if any(str(word).partition("=")[0].replace("_", "-") == "--api-key" for word in extra_args):
            msg = "a key on a command line can be read by everyone on the machine: leave it out"
            raise ConfigurationError(msg)

    # --- start and stop -----------------------------------------------------------------------

    def start(self) -> Self:
        """Start the server or attach to it, and return when it is ready; twice does no harm.

        Raises:
            ServerStartError: It did not become ready; with the cause and the end of its log.
            NoEngineError: `engine="auto"` and nothing here can read a page.
        """
        self.ensure(lambda: False)
        return self

    def ensure(self, cancelled: Callable[[], bool]) -> list[Endpoint]:
        """Start it if that was not done, and give where it is; for the package's own use.

        Args:
            cancelled: Asked while waiting; True gives up.
        """
        self._notice_fork()
        with self._lock:
            if self._endpoints:
                return self._endpoints
            if self._foreign is not None:
                self._endpoints = _run(self._foreign.acquire)
                return self._endpoints
            refuse_windows()
            options: ServerOptions | None = None
            if self._folder is None or not self._attach_only:
                options = options_of(self._engine, self._model, **self._given)
                self._folder = self._folder or folder_of(options)
            folder = self._folder
            if self._attach_only:
                options = None
            copies = Copies(folder, options)
            closing = self._starting = threading.Event()
            try:
                states = copies.acquire(
                    timeout=self._start_timeout,
                    linger=self._linger,
                    cancelled=lambda: closing.is_set() or cancelled(),
                )
            finally:
                self._starting = None
            self._copies = copies
            self._endpoints = [endpoint_of(state) for state in states]
            return self._endpoints

    def stop(self) -> None:
        """Give the server back; if this was its last user, return when its processes are gone.

        It may be called twice, from another thread while `start` waits, and before `start`.
        """
        self._notice_fork()
        if (starting := self._starting) is not None:
            starting.set()
        with self._lock:
            copies, self._copies = self._copies, None
            self._endpoints = []
        if copies is not None:
            copies.release(at_once=True, wait=True)

    close = stop

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        cancelled = threading.Event()
        try:
            await asyncio.to_thread(self.ensure, cancelled.is_set)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.shield(asyncio.to_thread(self.stop))
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    async def recover(self, failed: Endpoint) -> Endpoint | None:
        """Wait until the server, which stopped answering, is ready again.

        Returns:
            Its new address; None where it was alive all the time.

        Raises:
            ServerDiedError: It is gone for good.
        """
        if self._foreign is not None:
            found = await self._foreign.recover(failed)
        elif self._copies is None:
            started = await asyncio.to_thread(self.ensure, lambda: False)
            found = successor(started, failed)
        else:
            found = await recover_managed(self._copies, failed, timeout=self._start_timeout)
        if found is not None:
            self._endpoints = [
                found if self._is_same(one, failed) else one for one in self._endpoints
            ]
        return found

    def _is_same(self, one: Endpoint, other: Endpoint) -> bool:
        # Ours may be at another port after a restart; those of others are all number 0.
        if self._foreign is not None:
            return one.base_url == other.base_url
        return one.copy == other.copy

    # --- what it is ---------------------------------------------------------------------------

    @property
    def endpoints(self) -> list[Endpoint]:
        """Where pages are sent: one place, or two with a key each where they share a large GPU.

        Raises:
            ConfigurationError: It was not started.
        """
        if not self._endpoints or self._pid != os.getpid():
            msg = "the server is not started: use it in a with block, or call start()"
            raise ConfigurationError(msg)
        if self._copies is not None:
            self._endpoints = [self._now(endpoint) for endpoint in self._endpoints]
        return list(self._endpoints)

    def _now(self, endpoint: Endpoint) -> Endpoint:
        hold = self._copies.hold(endpoint.copy) if self._copies is not None else None
        state = hold.folder.read() if hold is not None else None
        if state and state.phase == "ready" and state.generation > endpoint.generation:
            return endpoint_of(state)
        return endpoint

    @property
    def endpoint(self) -> Endpoint:
        """The first of `endpoints`."""
        return self.endpoints[0]

    @property
    def base_url(self) -> str:
        """The address up to and including `/v1`, of the first of `endpoints`."""
        return self.endpoint.base_url

    @property
    def api_key(self) -> SecretStr | None:
        """The key that requests need; `get_secret_value()` gives it."""
        return self.endpoint.api_key

    @property
    def model(self) -> str:
        """The id to send."""
        return self.endpoint.model

    @property
    def engine(self) -> str:
        """Who reads: `vllm`, `rapidocr`, or what a server of someone else calls itself."""
        return self.endpoint.engine

    @property
    def log_file(self) -> Path | None:
        """The engine's log; None for a server that someone else runs, and before `start`."""
        return self._folder.log if self._folder is not None else None

    @property
    def pid(self) -> int | None:
        """The engine's first process; None where it is not ours or not running."""
        state = self._folder.read() if self._folder is not None else None
        leader = state.family.leader if state is not None else None
        return leader.pid if leader is not None else None

    def __repr__(self) -> str:
        if not self._endpoints:
            return f"DeepSeekOCRServer(engine={self._engine!r}, not started)"
        first = self._endpoints[0]
        where = ", ".join(endpoint.base_url for endpoint in self._endpoints)
        return f"DeepSeekOCRServer({where}, {first.engine}, {first.model})"

    # --- other processes ----------------------------------------------------------------------

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._attach_only = self._foreign is None
            self._reset()

    def __getstate__(self) -> dict[str, Any]:
        # No key and no lease: a worker reads the key from the state folder and takes its own.
        state = {
            name: value
            for name, value in self.__dict__.items()
            if name not in {"_lock", "_starting", "_copies", "_endpoints"}
        }
        state["_attach_only"] = self._foreign is None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pid = os.getpid()
        self._reset()


def _run(work: Callable[[], Any]) -> Any:
    """Run a coroutine from synchronous code, also where an event loop runs already."""
    result: list[Any] = []

    def inner() -> None:
        try:
            result.append((True, asyncio.run(work())))
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            result.append((False, error))

    thread = threading.Thread(target=inner, name="deepseek-ocr-discover", daemon=True)
    thread.start()
    thread.join()
    good, value = result[0]
    if good:
        return value
    raise value
