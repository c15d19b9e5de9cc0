"""Which engine reads, where the user did not say."""

from __future__ import annotations

import importlib.util
import warnings
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.engines.gpu import gpu_seen
from deepseek_ocr_loaders.errors import ConfigurationError, NoEngineError

if TYPE_CHECKING:
    from deepseek_ocr_loaders.engines.base import Engine

__all__ = ["choose", "engine_named"]

_CPU_MODULES = ("rapidocr", "onnxruntime", "starlette", "uvicorn")


def engine_named(name: str) -> Engine:
    """Give the engine of a name: `vllm`, `docker` or `rapidocr`."""
    # Each is loaded only when it is meant: the supervisor must start at once.
    if name == "vllm":
        from deepseek_ocr_loaders.engines.vllm import VllmEngine  # noqa: PLC0415

        return VllmEngine()
    if name == "docker":
        from deepseek_ocr_loaders.engines.docker import DockerEngine  # noqa: PLC0415

        return DockerEngine()
    if name == "rapidocr":
        from deepseek_ocr_loaders.engines.rapidocr import RapidOCREngine  # noqa: PLC0415

        return RapidOCREngine()
    msg = f"engine: {name!r} is none of auto, vllm, docker, rapidocr"
    raise ConfigurationError(msg)


def choose(name: str) -> str:
    """Decide for `auto`, and give any other name back.

    vLLM where it is installed and a GPU is seen; else the embedded engine, with one warning, where
    the extra `cpu` is installed.

    Raises:
        NoEngineError: Neither is there; it names the three ways out.
    """
    if name != "auto":
        return name
    from deepseek_ocr_loaders.engines.vllm import VllmEngine  # noqa: PLC0415

    no_vllm, gpu = VllmEngine().unavailable(), gpu_seen()
    if not no_vllm and gpu:
        return "vllm"
    if all(importlib.util.find_spec(module) is not None for module in _CPU_MODULES):
        _warn("no GPU is seen" if not gpu else "vLLM is not installed")
        return "rapidocr"
    reason = "no GPU is seen" if not gpu else f"vLLM cannot be used: {no_vllm}"
    msg = (
        f"nothing on this machine can read a page ({reason}). Three ways out: "
        "(1) give the address of a server that runs elsewhere, as base_url=... or in "
        "DEEPSEEK_OCR_BASE_URL; "
        "(2) on a machine with an NVIDIA GPU, install vLLM: pip install vllm; "
        "(3) read with the embedded engine RapidOCR on the processor: "
        'pip install "deepseek-ocr-loaders[cpu]"'
    )
    raise NoEngineError(msg)


def _warn(reason: str) -> None:
    # Python shows a warning of one place once; an index of a thousand files needs no more.
    warnings.warn(
        f"{reason}, so pages are read by the embedded engine RapidOCR and NOT by DeepSeek-OCR: "
        "plain text only, no tables, no formulas. engine='rapidocr' says that this is meant.",
        UserWarning,
        stacklevel=2,
    )
