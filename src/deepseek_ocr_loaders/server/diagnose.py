"""The plain cause of a failed start, where the end of the log shows one, and what to do."""

# ruff: noqa: E501 - a pattern is read in one piece

from __future__ import annotations

import os
import re

__all__ = ["explain", "shared_memory_warning"]

_FIX_MEMORY = (
    "Close what else uses the GPU (nvidia-smi shows it), or give this server a smaller share: "
    "gpu_memory_utilization=0.5. DeepSeek-OCR needs about 8 GB."
)
_FIX_DRIVER = (
    "Update the NVIDIA driver, or install a vLLM that was built for an older CUDA: vLLM 0.12 "
    "needs a driver for CUDA 12, vLLM 0.20 and newer one for CUDA 13 (580 or newer). A CUDA "
    "toolkit is not needed: the wheels bring their own."
)

# The first that matches is told, so what is specific comes before what follows from it.
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        (
            r"lib(cudart|cublas\w*|cudnn\w*|nvrtc|nccl|cusparse\w*|cufft|curand)[\w.-]*\.so[\d.]*"
            r".{0,40}(cannot open|no such file|not found)"
        ),
        (
            "A CUDA runtime library is missing from the environment of vLLM: its torch does not fit "
            "it. Install vLLM afresh in an environment of its own (pip install vllm); a CUDA toolkit "
            "on the machine is not what is missing."
        ),
    ),
    (
        (
            r"driver.{0,60}(too old|insufficient|older than)|cuda driver version is insufficient"
            r"|cudaErrorInsufficientDriver|forward compatibility was attempted"
            r"|unsupported (display driver|ptx|toolchain)|the provided PTX was compiled with"
        ),
        "The NVIDIA driver is too old for the CUDA runtime of this vLLM. " + _FIX_DRIVER,
    ),
    (
        (
            r"no kernel image is available|sm_\d+ is not compatible|not compatible with the current"
            r" pytorch|compute capability.{0,80}(not supported|at least|required|minimum|lower|less)"
            r"|unsupported gpu arch|(requires|supports).{0,40}compute capability"
            r"|bfloat16 is only supported on gpus"
        ),
        (
            "This GPU is of a generation that this vLLM was not built for. Use a vLLM that supports "
            "it (an older version for an older GPU, a newer one for a newer), or another GPU."
        ),
    ),
    (
        (
            r"free memory on device.{0,160}(less than|is less)"
            r"|less than desired gpu memory utilization|(insufficient|not enough) (free )?gpu memory|error in memory profiling"
            r"|is already in use by another process"
        ),
        "The GPU is already full: another program holds its memory. " + _FIX_MEMORY,
    ),
    (
        (
            r"no available memory for the cache blocks|kv cache.{0,60}(larger|needed|not enough)"
            r"|to serve at least one request.{0,80}kv cache|max seq len.{0,80}kv cache"
        ),
        (
            "The share of GPU memory that the server may use is too small for the model and its "
            "cache. Raise gpu_memory_utilization, or free the GPU (nvidia-smi shows who holds it)."
        ),
    ),
    (
        r"out ?of ?memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|\bOOM\b",
        "The GPU's memory ran out. " + _FIX_MEMORY,
    ),
    (
        (
            r"/dev/shm|"  # noqa: S108
            r"shared memory.{0,60}(no space|small|insufficient|size|limit|exceed)"
            r"|(insufficient|not enough|unable to (open|allocate|write to)).{0,20}shared memory"
            r"|shm_open|bus error|SIGBUS|shm.?size"
        ),
        (
            "The shared memory (/dev/shm) is too small. In a container, start it with --ipc=host or "
            "--shm-size=8g; on the host: sudo mount -o remount,size=8g /dev/shm."
        ),
    ),
    (
        (
            r"nvidia.uvm|cuda(_error)?.?(unknown.?error|error.?unknown)|unknown error"
            r"|CUDA_ERROR_UNKNOWN|all cuda-capable devices are busy|devices?.{0,40}busy or unavailable"
            r"|cudaErrorDevicesUnavailable|initialization error.{0,60}cuda|setting the available devices"
        ),
        (
            "The GPU is busy or stuck, as it is after the machine was suspended. Reload the driver's "
            "module (sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm) or restart the machine; if a "
            "program holds the GPU exclusively, end it."
        ),
    ),
    (
        (
            r"no cuda-capable device|no nvidia (driver|gpu)|found no nvidia|libcuda\.so"
            r"|no (cuda )?gpus? (are|is) available|failed to infer device type"
            r"|could not select device driver|nvml.{0,40}(not found|failed|error)"
        ),
        (
            "No NVIDIA GPU is visible to the server. Check nvidia-smi and CUDA_VISIBLE_DEVICES; for a "
            "container, install the NVIDIA Container Toolkit."
        ),
    ),
    (
        (
            r"gated repo|access to model .{0,80} is restricted|401 client error|403 client error"
            r"|invalid (user )?token|cannot access gated"
        ),
        (
            "The model hub refuses the model: it is gated, or the token is not valid. Accept its terms "
            "on the hub and set HF_TOKEN."
        ),
    ),
    (
        r"no space left|disk quota exceeded|ENOSPC|not enough (free )?disk|os error 28",
        (
            "The disk is full. Free space, or point HF_HOME (the model cache) to a larger disk: "
            "DeepSeek-OCR takes about 7 GB."
        ),
    ),
    (
        (
            r"repository ?not ?found|is not a local folder and is not a valid model|404 client error"
            r"|does not appear to have a file named|no such model|can'?t load the (configuration|model)"
            r"|cannot find (the requested files|an appropriate cached snapshot)|LocalEntryNotFound"
            r"|invalid repository id|repo id must|outgoing traffic has been disabled"
            r"|offline mode is enabled|couldn'?t connect to .{0,40}(huggingface|hf)"
            r"|name resolution|max retries exceeded|network is unreachable"
        ),
        (
            "The model was not found: neither as a folder, nor in the cache, nor on the hub. Check its "
            "name and the network; without network, download it first (hf download "
            "deepseek-ai/DeepSeek-OCR) or give the folder as model=."
        ),
    ),
    (
        r"address already in use|errno 98|EADDRINUSE|port is already allocated|port \d+ is in use",
        "The port is in use by another program. Leave port unset to take a free one.",
    ),
    (
        r"max_model_len.{0,120}(greater|larger|exceed)|user-specified max_model_len",
        "--max-model-len is above the model's 8192 tokens. Leave it out.",
    ),
    (
        r"is not a subclass of .{0,80}logits?_?processor",
        (
            "This vLLM's Model Runner V2 refuses the n-gram processor. Set the variable "
            "VLLM_USE_V2_MODEL_RUNNER=0 for it, or leave the processor out with "
            'extra_args=["--no-logits-processors"].'
        ),
    ),
    (
        (
            r"unrecognized arguments?|invalid choice|error: argument|ambiguous option"
            r"|expected (one|at least one|\d+) argument"
        ),
        (
            "This vLLM does not know an argument of the command line. Check extra_args against its "
            "version (vllm serve --help=all)."
        ),
    ),
    (
        r"model architectures? .{0,80}(not supported|failed to be inspected)|unsupported architecture",
        (
            "This vLLM does not know the architecture of the model. DeepSeek-OCR needs vLLM 0.12 or "
            "newer: pip install -U vllm."
        ),
    ),
    (
        (
            r"cannot connect to the docker daemon|is the docker daemon running"
            r"|permission denied.{0,60}docker"
        ),
        "Docker cannot be reached. Start its daemon, and let your user talk to it (group docker).",
    ),
    (
        (
            r"unable to find image|manifest( for .*)? (unknown|not found)|pull access denied"
            r"|no such image"
        ),
        (
            "The container image is not there and cannot be fetched. Check image=, or give the file "
            "that docker save wrote as image_tar=."
        ),
    ),
    (
        r"command not found|exec format error|no module named '?vllm|cannot execute",
        (
            "The vLLM command does not run. Install vLLM in an environment of its own (pip install "
            "vllm), and set DEEPSEEK_OCR_VLLM to its bin/vllm."
        ),
    ),
)
_LOUD = re.compile(r"error|exception|fatal|fail|cannot|could not|unable|denied", re.IGNORECASE)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), hint) for pattern, hint in _CAUSES)


def explain(log: str, exit_code: int | None = None) -> str:
    """Name the cause of a failure and what to do about it.

    Args:
        log: The end of the engine's log.
        exit_code: Its exit code; negative for a signal, as `subprocess` gives it.

    Returns:
        One or two sentences; empty where the log shows no cause that is known.
    """
    lines = log.splitlines()
    # A healthy start warns about many things: what looks like an error is asked first.
    loud = "\n".join(line for line in lines if _LOUD.search(line) and "WARNING" not in line)
    for text in (loud, "\n".join(line for line in lines if "WARNING" not in line), log):
        for pattern, hint in _PATTERNS:
            if pattern.search(text):
                return hint
    if exit_code in (-9, 137):
        return (
            "The process was killed (signal 9), which is what the system does when the machine's "
            "memory runs out. Look at the kernel's log (dmesg) and free memory."
        )
    if exit_code in (-7, 135):
        return explain("bus error")
    return ""


def shared_memory_warning() -> str | None:
    """Say that /dev/shm is smaller than 1 GB; None where it is not, or where there is none."""
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - it is asked for its size only
    except (OSError, AttributeError):
        return None
    size = found.f_blocks * found.f_frsize
    if size >= 1024**3:
        return None
    return (
        f"/dev/shm has {size / 1024**2:.0f} MB; vLLM wants at least 1 GB, "  # noqa: S108
        "for its processes to talk. In a container, start it with --ipc=host or --shm-size=8g."
    )
