"""What every engine tells about itself: whether it can run here, and how it is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Engine", "LaunchPlan", "ServerOptions"]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What a managed server can be told; the same options make the same (shared) server.

    Attributes:
        engine: `vllm`, `docker` or `rapidocr`.
        model: A hub id or a local folder.
        port: A fixed port; None takes a free one.
        gpu_memory_utilization: Share of the GPU's memory, 0 to 1; None leaves it to the engine.
        data_parallel_size: Copies of the model, one a GPU.
        tensor_parallel_size: GPUs that share one copy.
        extra_args: Arguments added to the engine's command line; one that is given replaces ours.
        env: Variables added to the engine's environment.
        image: Docker image and tag, for `docker`.
        image_tar: A file that `docker save` wrote, loaded where the image is not there.
        offline: True forbids the engine to ask the model hub.
        copies: How many servers of these options work side by side on one GPU.
        copy: Which of them this is, from 0.
    """

    engine: str
    model: str
    port: int | None = None
    gpu_memory_utilization: float | None = None
    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    extra_args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    image: str | None = None
    image_tar: Path | None = None
    offline: bool = False
    copies: int = 1
    copy: int = 0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How one engine process is started.

    Attributes:
        argv: The command line; it holds no secret.
        env: The whole environment of the process; the key is in here.
        served_model: The id that `/v1/models` must list before the server counts as ready.
        container: The container's name where the engine runs in one; its label
            `deepseek-ocr-loaders.server` has the same value.
        before: Commands that must succeed first, such as loading a container image.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    served_model: str
    container: str | None = None
    before: Sequence[Sequence[str]] = ()


class Engine(Protocol):
    """One way to run a server that reads pages."""

    name: str

    def unavailable(self) -> str | None:
        """Say why the engine cannot run here; None where it can. It starts and imports nothing."""

    def copies(self, options: ServerOptions) -> int:
        """Give how many servers of these options, side by side, use the machine best."""

    def plan(self, options: ServerOptions, *, port: int, api_key: str) -> LaunchPlan:
        """Decide command line and environment for the version that is installed.

        Raises:
            ServerStartError: It is not installed, or the options do not fit it.
        """
