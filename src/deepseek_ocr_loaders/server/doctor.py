"""What on this machine stands in the way of reading pages, and the remedy for each."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepseek_ocr_loaders.engines.docker import DEFAULT_IMAGE, docker_command
from deepseek_ocr_loaders.engines.gpu import Gpu, gpu_processes, gpu_seen, gpus
from deepseek_ocr_loaders.engines.vllm import (
    CONTEXT,
    DEFAULT_MODEL,
    Installed,
    context_tokens,
    find,
    flag_value,
)
from deepseek_ocr_loaders.errors import ServerError
from deepseek_ocr_loaders.server.diagnose import shared_memory_warning
from deepseek_ocr_loaders.server.processes import members
from deepseek_ocr_loaders.server.state import ServerFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deepseek_ocr_loaders.engines.base import ServerOptions

__all__ = ["Check", "doctor"]

Verdict = Literal["ok", "warning", "error", "skipped"]

MODEL_GIB = 7
"""Size of the weights on disk."""
NEEDED_GIB = 8
"""GPU memory that the model's makers name as the least."""
_DRIVERS = {12: (525, 60), 13: (580, 65)}
"""The oldest Linux driver for each major version of CUDA, by NVIDIA's release notes."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What.
        status: `ok`; `warning` (it works, or only part of it does not); `error` (no page can be
            read this way); `skipped` (not used on this machine).
        detail: What was found.
        remedy: What to do; empty where there is nothing to do.
    """

    name: str
    status: Verdict
    detail: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Give it for JSON."""
        return asdict(self)


def doctor(options: ServerOptions | None = None, *, model: str | None = None) -> list[Check]:
    """Look at everything that a managed server needs; nothing is started or changed.

    Args:
        options: A server whose arguments are looked at as well.
        model: A hub id or folder; by default the one that a loader would take.
    """
    installed, seen = find(), gpus()
    wanted = model or (options.model if options else None) or os.environ.get("DEEPSEEK_OCR_MODEL")
    checks: list[Callable[[], Iterator[Check]]] = [
        _versions,
        lambda: _engine(installed, seen),
        lambda: _vllm(installed),
        lambda: _gpus(seen, installed),
        lambda: _driver(seen, installed),
        lambda: _stuck(seen),
        lambda: _memory(seen),
        _shared_memory,
        lambda: _model(wanted or DEFAULT_MODEL),
        lambda: _arguments(options),
        _environment,
        _ports,
        _docker,
        _state,
    ]
    return [check for run in checks for check in run()]


def _versions() -> Iterator[Check]:
    names = ["deepseek-ocr-loaders", "openai", "pymupdf", "langchain-core", "llama-index-core"]
    found = [f"Python {platform.python_version()}", platform.platform()]
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    yield Check("versions", "ok", ", ".join(found))


def _engine(installed: Installed | None, seen: list[Gpu]) -> Iterator[Check]:
    has_gpu = bool(seen) or gpu_seen()
    embedded = all(
        importlib.util.find_spec(name) is not None
        for name in ("rapidocr", "onnxruntime", "starlette", "uvicorn")
    )
    if address := os.environ.get("DEEPSEEK_OCR_BASE_URL"):
        yield Check("engine", "ok", f"DEEPSEEK_OCR_BASE_URL is set: pages go to {_plain(address)}")
    elif installed and has_gpu:
        yield Check("engine", "ok", "vLLM on a GPU reads the pages")
    elif embedded:
        missing = "no GPU is seen" if not has_gpu else "vLLM is not installed"
        yield Check(
            "engine",
            "warning",
            f"{missing}: the embedded engine RapidOCR reads the pages, not DeepSeek-OCR",
            "On a machine with an NVIDIA GPU: pip install vllm. Or give the address of a server "
            "as base_url=... or in DEEPSEEK_OCR_BASE_URL.",
        )
    else:
        yield Check(
            "engine",
            "error",
            "nothing on this machine can read a page",
            "Give the address of a server (base_url=... or DEEPSEEK_OCR_BASE_URL), or install "
            'vllm on a GPU machine, or pip install "deepseek-ocr-loaders[cpu]".',
        )


def _plain(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//", address.partition("?")[0])


def _vllm(installed: Installed | None) -> Iterator[Check]:
    if installed is None:
        given = os.environ.get("DEEPSEEK_OCR_VLLM")
        yield Check(
            "vllm",
            "error" if given else "skipped",
            f"DEEPSEEK_OCR_VLLM names {given}, which cannot be run" if given else "not installed",
            "Set it to the bin/vllm of an environment that has vLLM." if given else "",
        )
        return
    where = f"{installed.version or 'of unknown version'} ({' '.join(installed.command)})"
    if installed.release is not None and installed.release < (0, 12):
        yield Check("vllm", "error", where, 'It is too old: pip install -U "vllm>=0.12".')
    elif installed.version is None:
        yield Check("vllm", "warning", where, "Its version could not be read beside the command.")
    else:
        yield Check("vllm", "ok", where)


def _gpus(seen: list[Gpu], installed: Installed | None) -> Iterator[Check]:
    if not seen:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None:
            yield Check(
                "gpu",
                "warning",
                f"CUDA_VISIBLE_DEVICES is {hidden!r} and leaves no GPU",
                "Unset it, or set it to the number of a GPU that nvidia-smi lists.",
            )
        elif Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
            yield Check(
                "gpu",
                "error",
                "there is an NVIDIA device, but nvidia-smi gives no GPU",
                "Run nvidia-smi: reload or reinstall the driver if it fails; in a container, "
                "start it with --gpus all.",
            )
        else:
            yield Check("gpu", "skipped", "no NVIDIA GPU")
        return
    for gpu in seen:
        text = f"GPU {gpu.index}: {gpu.name}, {gpu.memory_mib} MiB, driver {gpu.driver}"
        major = int(gpu.capability.partition(".")[0] or 0) if gpu.capability[:1].isdigit() else 0
        if gpu.memory_mib < NEEDED_GIB * 1000:
            yield Check(
                "gpu", "error", text, f"DeepSeek-OCR needs {NEEDED_GIB} GB: use a larger GPU."
            )
        elif major and major < 7:
            yield Check(
                "gpu", "error", f"{text}, compute capability {gpu.capability}",
                "vLLM supports 7.0 and newer: use another GPU, or a server elsewhere (base_url).",
            )  # fmt: skip
        elif major == 7 and installed is not None:
            yield Check(
                "gpu", "warning", f"{text}, compute capability {gpu.capability}",
                'It has no bfloat16: start the server with extra_args=["--dtype", "half"].',
            )  # fmt: skip
        else:
            yield Check("gpu", "ok", text)


def cuda_runtime(installed: Installed) -> tuple[int, str] | None:
    """Give the major version of CUDA that a vLLM was built for, and where that is known from."""
    if installed.cpu_only:
        return None
    distributions = (
        importlib.metadata.distributions(path=[str(installed.site)])
        if installed.site is not None
        else importlib.metadata.distributions()
    )
    names: dict[str, str] = {}
    for found in distributions:
        name = (found.name or "").lower().replace("_", "-")
        if name == "torch" or name.startswith("nvidia-cuda-runtime"):
            names[name] = found.version
    for name, version in names.items():
        # The wheels carry the runtime: `nvidia-cuda-runtime-cu12` 12.8, `nvidia-cuda-runtime` 13.0.
        if name.startswith("nvidia-cuda-runtime") and version.partition(".")[0].isdigit():
            return int(version.partition(".")[0]), f"{name} {version}"
    if match := re.search(r"\+cu(\d{2})\d", names.get("torch", "")):
        return int(match[1]), f"torch {names['torch']}"
    if installed.release is not None:
        major = 12 if installed.release < (0, 20) else 13
        return major, f"vLLM {installed.version}"
    return None


def _driver(seen: list[Gpu], installed: Installed | None) -> Iterator[Check]:
    runtime = cuda_runtime(installed) if installed is not None else None
    if not seen or runtime is None or installed is None:
        yield Check("driver", "skipped", "no GPU, or no vLLM for one")
        return
    major, source = runtime
    needed = _DRIVERS.get(major)
    driver = seen[0].driver
    parts = tuple(int(part) for part in driver.split(".")[:2] if part.isdigit())
    if needed is None or len(parts) < 1:
        yield Check("driver", "warning", f"driver {driver}, CUDA {major} ({source}): not known")
    elif parts < needed[: len(parts)]:
        older = ', or install a vLLM for CUDA 12 (pip install "vllm<0.20")' if major >= 13 else ""
        remedy = (
            f"Update the NVIDIA driver to {needed[0]} or newer{older}. A CUDA toolkit need not be "
            "installed or updated: the wheels bring their own runtime."
        )
        yield Check(
            "driver",
            "error",
            f"driver {driver} is too old for CUDA {major}, which this vLLM was built for "
            f"({source})",
            remedy,
        )
    else:
        yield Check(
            "driver",
            "ok",
            f"driver {driver} is new enough for CUDA {major} ({source}); a CUDA toolkit is not "
            "needed",
        )


_CU_INIT = "import ctypes; lib = ctypes.CDLL('libcuda.so.1'); print(lib.cuInit(0))"


def _stuck(seen: list[Gpu]) -> Iterator[Check]:
    if not seen:
        return
    try:
        reply = subprocess.run(
            [sys.executable, "-c", _CU_INIT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        code = "no reply"
    else:
        code = reply.stdout.strip() if reply.returncode == 0 else "libcuda.so.1 does not load"
    if code == "0":
        yield Check("cuda", "ok", "the driver initialises")
    elif code == "999":
        yield Check(
            "cuda",
            "error",
            "the driver answers with an unknown error (999), as after the machine was suspended",
            "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm, or restart the machine.",
        )
    else:
        yield Check(
            "cuda",
            "error",
            f"the driver does not initialise ({code})",
            "Check that the driver's library and its kernel module are of the same version "
            "(nvidia-smi says so if not), and restart the machine after an update.",
        )


def _memory(seen: list[Gpu]) -> Iterator[Check]:
    if not seen:
        return
    ours = {
        process.pid
        for folder in ServerFolder.all()
        if (state := folder.read()) is not None
        for process in members(state.family)
    }
    holders = [
        f"{process.pid} {Path(process.name).name} {process.used_mib} MiB"
        + (" (a managed server)" if process.pid in ours else "")
        for process in gpu_processes()
    ]
    strangers = [process for process in gpu_processes() if process.pid not in ours]
    for gpu in seen:
        free = gpu.memory_mib - gpu.used_mib
        text = f"GPU {gpu.index}: {free} of {gpu.memory_mib} MiB free"
        if holders:
            text += "; held by " + ", ".join(holders)
        # vLLM asks for its share of all the memory, not of what is free.
        if free < NEEDED_GIB * 1024 and (strangers or not ours):
            yield Check(
                "gpu memory",
                "error",
                text,
                f"DeepSeek-OCR needs {NEEDED_GIB} GB: end the programs that hold the memory.",
            )
        elif free < 0.9 * gpu.memory_mib and strangers:
            share = max(0.05, int(free / gpu.memory_mib * 95) / 100)
            yield Check(
                "gpu memory",
                "warning",
                text,
                f"vLLM asks for 90 % of all memory: start with gpu_memory_utilization={share:.2f}.",
            )
        else:
            yield Check("gpu memory", "ok", text)


def _shared_memory() -> Iterator[Check]:
    if warning := shared_memory_warning():
        detail, _, remedy = warning.partition(". ")
        yield Check("shared memory", "warning", detail, remedy)
    else:
        yield Check("shared memory", "ok", "/dev/shm has 1 GB or more")  # noqa: S108


def _hub_folder() -> Path:
    if given := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given).expanduser()
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "hub"


def _model(model: str) -> Iterator[Check]:
    folder = Path(model).expanduser()
    if folder.is_dir() or model.startswith(("/", ".", "~")):
        if (folder / "config.json").is_file():
            yield Check("model", "ok", f"the folder {folder}")
        else:
            yield Check(
                "model",
                "error",
                f"the folder {folder} has no config.json",
                "Give the folder that holds config.json and the weights.",
            )
        return
    hub = _hub_folder()
    place = hub / ("models--" + model.replace("/", "--"))
    weights = [*place.glob("snapshots/*/*.safetensors"), *place.glob("snapshots/*/*.bin")]
    unfinished = list(place.glob("blobs/*.incomplete"))
    if any(file.exists() for file in weights) and not unfinished:
        yield Check("model", "ok", f"{model} is in the cache ({place})")
        return
    free = _free_gib(hub)
    part = "partly " if unfinished else "not "
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}
    if offline:
        yield Check(
            "model",
            "warning",
            f"{model} is {part}in the cache ({hub}), and HF_HUB_OFFLINE forbids to fetch it",
            f"Unset it once and run: hf download {model}; or give the model's folder.",
        )
    elif free is not None and free < MODEL_GIB + 2:
        yield Check(
            "disk",
            "error",
            f"{free:.1f} GiB free where the model cache is ({hub}); the model takes {MODEL_GIB}",
            "Free space, or point HF_HOME to a larger disk.",
        )
    else:
        room = f"; {free:.0f} GiB free there" if free is not None else ""
        yield Check(
            "model",
            "ok",
            f"{model} is {part}in the cache ({hub}) and is fetched at the first start{room}",
        )


def _free_gib(folder: Path) -> float | None:
    for place in (folder, *folder.parents):
        if place.exists():
            try:
                return shutil.disk_usage(place).free / 1024**3
            except OSError:
                return None
    return None


def _arguments(options: ServerOptions | None) -> Iterator[Check]:
    given = [options] if options is not None else []
    running = [folder.options() for folder in ServerFolder.all() if folder.has_owner()]
    given.extend(known for known in running if known is not None)
    trouble = False
    for one in given:
        length = flag_value(one.extra_args, "--max-model-len")
        if length and context_tokens(length) > CONTEXT:
            trouble = True
            yield Check(
                "arguments",
                "error",
                f"--max-model-len {length} is above the model's {CONTEXT} tokens: vLLM does not "
                "start",
                "Leave it out; articles that recommend 32768 are wrong.",
            )
        for flag in ("--enable-auto-tool-choice", "--tool-call-parser"):
            if flag_value(one.extra_args, flag) is not None:
                trouble = True
                yield Check(
                    "arguments",
                    "warning",
                    f"{flag} does nothing: the model's chat template knows no tools",
                    "Leave it out.",
                )
    if not trouble:
        yield Check("arguments", "ok", "no argument that is known to be harmful")


def _environment() -> Iterator[Check]:
    env = os.environ
    trouble = False
    if env.get("VLLM_USE_V2_MODEL_RUNNER", "0") not in {"0", ""}:
        trouble = True
        yield Check(
            "environment",
            "warning",
            "VLLM_USE_V2_MODEL_RUNNER is set; that runner refuses the n-gram processor. For a "
            "managed server it is overridden",
            "Unset it for servers that you start yourself.",
        )
    leaked = [name for name in env if name == "VLLM_PORT" or name.startswith("VLLM_PORT_")]
    if leaked:
        trouble = True
        yield Check(
            "environment",
            "warning",
            f"{', '.join(sorted(leaked))}: set by Kubernetes for a service named vllm, or by hand. "
            "A managed server does not see it",
            "Name the service otherwise, or unset it for servers that you start yourself.",
        )
    if not trouble:
        yield Check("environment", "ok", "no variable that is known to be harmful")


def _ports() -> Iterator[Check]:
    try:
        with socket.socket() as found, socket.socket() as calling:
            found.bind(("127.0.0.1", 0))
            found.listen()
            calling.settimeout(5)
            calling.connect(found.getsockname())
    except OSError as error:
        yield Check(
            "port",
            "error",
            f"no connection over 127.0.0.1 can be made: {error}",
            "Allow connections over the loopback address (firewall, sandbox).",
        )
        return
    yield Check("port", "ok", "a free port on 127.0.0.1 can be had and reached")


def _docker() -> Iterator[Check]:
    docker = docker_command()
    if docker is None:
        yield Check("docker", "skipped", "not installed")
        return

    def ask(*arguments: str) -> subprocess.CompletedProcess[str] | None:
        try:
            return subprocess.run(
                [docker, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None

    info = ask("info", "--format", "{{json .}}")
    try:
        facts = json.loads(info.stdout) if info is not None and info.returncode == 0 else None
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or facts.get("ServerErrors"):
        yield Check(
            "docker",
            "warning",
            "the docker command is there, but its daemon does not answer",
            "Only needed for engine='docker': start the daemon, and let your user talk to it "
            "(group docker).",
        )
        return
    if "nvidia" not in (facts.get("Runtimes") or {}):
        yield Check(
            "docker",
            "warning",
            "Docker answers, but does not list the NVIDIA runtime",
            "For engine='docker': install the NVIDIA Container Toolkit and run sudo nvidia-ctk "
            "runtime configure --runtime=docker.",
        )
        return
    image = ask("image", "inspect", DEFAULT_IMAGE)
    here = image is not None and image.returncode == 0
    yield Check(
        "docker",
        "ok",
        f"it answers; the image {DEFAULT_IMAGE} is {'here' if here else 'fetched when needed'}",
    )


def _state() -> Iterator[Check]:
    try:
        folders = ServerFolder.all()
    except ServerError as error:
        yield Check("servers", "error", error.message, "Set DEEPSEEK_OCR_STATE_DIR.")
        return
    alive = 0
    for folder in folders:
        state = folder.read()
        if state is None:
            continue
        if folder.has_owner():
            alive += 1
        elif state.phase not in {"stopped", "failed"} and members(state.family):
            yield Check(
                "servers",
                "warning",
                f"a server's supervisor was killed and {len(members(state.family))} processes live",
                "deepseek-ocr-loaders stop",
            )
    yield Check("servers", "ok", f"{alive} managed server(s) running")
