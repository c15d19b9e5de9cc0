"""What `nvidia-smi` says about the GPUs; nothing is imported that would open one."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Gpu", "GpuProcess", "gpu_processes", "gpu_seen", "gpus", "is_partitioned"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        index: Its number.
        name: Its name.
        driver: The driver's version, for example `580.65.06`.
        memory_mib: All of its memory, in MiB.
        used_mib: What is in use of it.
        capability: Its compute capability, for example `9.0`; empty where it is not told.
    """

    index: int
    uuid: str
    name: str
    driver: str
    memory_mib: int
    used_mib: int
    capability: str


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU: its id, name and MiB."""

    pid: int
    name: str
    used_mib: int


def _ask(what: str, fields: str) -> list[list[str]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        reply = subprocess.run(
            [tool, f"--query-{what}={fields}", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if reply.returncode != 0:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in reply.stdout.splitlines()]


def _number(text: str) -> int:
    digits = text.partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def gpus() -> list[Gpu]:
    """Give the GPUs that this process may use, by `CUDA_VISIBLE_DEVICES`; empty where none is."""
    rows = _ask("gpu", "index,uuid,name,driver_version,memory.total,memory.used,compute_cap")
    found = [
        Gpu(_number(row[0]), row[1], row[2], row[3], _number(row[4]), _number(row[5]), row[6])
        for row in rows
        if len(row) == 7
    ]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    wanted = [part.strip() for part in visible.split(",")]
    return [
        gpu
        for gpu in found
        if str(gpu.index) in wanted or any(w and gpu.uuid.startswith(w) for w in wanted)
    ]


def gpu_processes() -> list[GpuProcess]:
    """Give the processes that hold memory of a GPU."""
    rows = _ask("compute-apps", "pid,process_name,used_memory")
    return [GpuProcess(_number(row[0]), row[1], _number(row[2])) for row in rows if len(row) == 3]


def is_partitioned() -> bool:
    """Say whether a GPU is cut into slices (MIG); `gpus` gives the memory of the whole."""
    return any(row[0] == "Enabled" for row in _ask("gpu", "mig.mode.current"))


def gpu_seen() -> bool:
    """Say whether there is a GPU that vLLM could use: NVIDIA or ROCm, and not hidden."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if os.environ.get(name, "0").strip() in {"", "-1", "none", "NoDevFiles"}:
            return False
    if any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd")):
        return True
    # A container may hold only some GPUs, and WSL has no device file of that name.
    return any(Path("/dev").glob("nvidia[0-9]*")) or bool(gpus())
