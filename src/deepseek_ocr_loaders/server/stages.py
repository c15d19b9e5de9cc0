"""What a starting engine is doing, read from its own log and never guessed."""

from __future__ import annotations

import re

__all__ = ["stage_of"]

_PERCENT = re.compile(r"\b(\d{1,3})%")
# The lines that show the whole configuration name every other stage, so they come first.
_STAGES: tuple[tuple[str, str], ...] = (
    ("loading the engine", r"initializing a (v\d )?llm engine|non-default args"),
    ("fetching the container image", r"unable to find image|pulling (from|fs)|pull complete"),
    ("unpacking the container image", r"loading layer|loaded image"),
    ("downloading the model", r"downloading|fetching \d+ files|\.safetensors:\s+\d"),
    (
        "loading the weights",
        r"loading safetensors|loading weights|checkpoint shards|starting to load model",
    ),
    ("compiling kernels", r"deep_?gemm.*warm|warming up|warmup|autotun|jit.*(compil|build)"),
    ("compiling the model", r"torch\.compile|dynamo bytecode|compiling a graph|inductor"),
    ("measuring the memory", r"profiling|available kv cache memory|kv cache size"),
    ("recording CUDA graphs", r"captur\w+ cuda ?graph|graph captur\w+"),
    (
        "opening the address",
        r"application startup|started server process|uvicorn running|starting vllm.*server",
    ),
)
_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _STAGES)


def stage_of(line: str) -> str | None:
    """Name what a line of an engine's log says that it is doing; None where it says nothing.

    A share of 1 to 100 % is kept: `loading the weights (50 %)`.
    """
    if "WARNING" in line:
        return None  # it tells what is not done
    for name, pattern in _PATTERNS:
        if pattern.search(line):
            share = _PERCENT.search(line)
            return f"{name} ({share[1]} %)" if share else name
    return None
