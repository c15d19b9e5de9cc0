"""vLLM in a container: the same server, from the image that vLLM publishes.

The container runs in the foreground of a `docker run` that we own, so its output and its end
reach us as those of a process do. Its name and label are ours, and only a container with that
label is ever stopped.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.endpoint import release_of
from deepseek_ocr_loaders.engines.base import LaunchPlan
from deepseek_ocr_loaders.engines.gpu import gpus
from deepseek_ocr_loaders.engines.vllm import (
    child_environment,
    engine_variables,
    model_source,
    serve_arguments,
    served_name,
)
from deepseek_ocr_loaders.errors import ServerStartError
from deepseek_ocr_loaders.server.processes import LABEL

if TYPE_CHECKING:
    from deepseek_ocr_loaders.engines.base import ServerOptions

__all__ = ["DEFAULT_IMAGE", "DockerEngine", "docker_command"]

DEFAULT_IMAGE = "vllm/vllm-openai:v0.26.0"
_PORT = 8000
_MODEL = "/model"
_CACHE = "/root/.cache/huggingface"


def docker_command() -> str | None:
    """Give the path of the `docker` command; None where there is none."""
    return shutil.which("docker")


def _gpu_argument() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    # The inner quotes are Docker's own: without them it reads the comma as the next option.
    return f'"device={visible}"' if visible else "all"


def _hub_cache() -> Path:
    home = os.environ.get("HF_HOME") or str(Path("~/.cache/huggingface").expanduser())
    return Path(home).expanduser().absolute()


class DockerEngine:
    """vLLM in a container of its own."""

    name = "docker"

    def unavailable(self) -> str | None:
        """Say why no container can be started here; None where one can."""
        if docker_command() is None:
            return (
                "the command docker is not there: install Docker and the NVIDIA Container Toolkit"
            )
        return None

    def copies(self, options: ServerOptions) -> int:
        """Give 1: more than one container was not tried."""
        del options
        return 1

    def plan(self, options: ServerOptions, *, port: int, api_key: str) -> LaunchPlan:
        """Decide the `docker run` for the image's version.

        Raises:
            ServerStartError: Docker or its daemon is not there, or a file that was named is not.
        """
        docker = docker_command()
        if docker is None:
            hint = self.unavailable() or ""
            msg = f"no container can be started: {hint}"
            raise ServerStartError(msg, hint=hint)
        image = options.image or DEFAULT_IMAGE
        before = _fetch(docker, image, options)
        source = model_source(options.model)
        is_folder = Path(source).is_dir()
        memory = [gpu.memory_mib / 1024 for gpu in gpus()]
        release = release_of(image.rpartition(":")[2])
        arguments = serve_arguments(
            options,
            release=release,
            cpu_only=False,
            # Inside the container; outside, the port is published on the loopback address only.
            host="0.0.0.0",  # noqa: S104
            port=_PORT,
            model=_MODEL if is_folder else source,
            gpu_memory_gib=min(memory) if memory else None,
        )
        own = engine_variables(arguments, release=release, offline=options.offline, api_key=api_key)
        inside = {**own, **dict(options.env), "VLLM_API_KEY": api_key}
        name = f"deepseek-ocr-{secrets.token_hex(6)}"
        argv = [docker, "run", "--rm", "--init", "--name", name]
        argv += ["--label", f"{LABEL}={name}", "--pull", "never" if options.offline else "missing"]
        argv += ["--gpus", _gpu_argument(), "--ipc=host"]
        argv += ["--publish", f"127.0.0.1:{port}:{_PORT}"]
        if is_folder:
            argv += ["--volume", f"{source}:{_MODEL}:ro"]
        else:
            argv += ["--volume", f"{_hub_cache()}:{_CACHE}"]
            inside.update({k: os.environ[k] for k in ("HF_TOKEN",) if k in os.environ})
        # Names only: docker takes the values from its own environment, so none is on the command
        # line.
        for variable in sorted(inside):
            argv += ["--env", variable]
        argv += ["--entrypoint", "vllm", image, *arguments]
        return LaunchPlan(
            argv=argv,
            env=child_environment(os.environ, needs_network=True, own=own, given=inside),
            served_model=served_name(options),
            container=name,
            before=before,
        )


def _fetch(docker: str, image: str, options: ServerOptions) -> list[list[str]]:
    """Give the commands that bring the image here, if it has to come from a file."""
    if options.image_tar is None and not options.offline:
        return []
    try:
        reply = subprocess.run(
            [docker, "image", "inspect", "--format", "{{.Id}}", image],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = "Check that `docker info` answers."
        msg = f"docker does not answer: {error}. {hint}"
        raise ServerStartError(msg, hint=hint) from error
    if reply.returncode == 0:
        return []
    if "daemon" in reply.stderr.lower() and "no such image" not in reply.stderr.lower():
        hint = "Start the Docker daemon, and let your user talk to it (group docker)."
        msg = f"docker cannot reach its daemon. {hint}"
        raise ServerStartError(msg, hint=hint, log_tail=reply.stderr[-2000:])
    if options.image_tar is None:
        hint = f"Give the file that `docker save {image} -o FILE` wrote, as image_tar=FILE."
        msg = f"the image {image} is not here, and offline=True forbids to fetch it. {hint}"
        raise ServerStartError(msg, hint=hint)
    tar = options.image_tar.expanduser().absolute()
    if not tar.is_file():
        hint = f"Make it on a machine with network: docker save {image} -o {tar.name}"
        msg = f"the image file {tar} does not exist. {hint}"
        raise ServerStartError(msg, hint=hint)
    return [[docker, "load", "--input", str(tar)]]
