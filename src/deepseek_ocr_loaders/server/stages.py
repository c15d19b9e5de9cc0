"""What a starting engine is doing, read from its own log and never guessed."""

from __future__ import annotations

import re

__all__ = ["stage_of"]

_PERCENT = re.compile(r"(\d{1,3})%")
_STAGES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("fetching the container image", r"unable to find image|pulling (from|fs layer)|pull complete"),
        ("unpacking the container image", r"loading layer|loaded image"),
        ("downloading the model", r"downloading|fetching \d+ files|\.safetensors:\s+\d"),
        ("loading the weights", r"loading safetensors|loading weights|checkpoint shards"
         r"|starting to load model"),
        ("compiling", r"torch\.compile|dynamo bytecode|compiling a graph|inductor"),
        ("compiling kernels", r"deep_?gemm.*warm|warming up|autotun|jit.*(compil|build)"),
        ("measuring the memory", r"profiling|available kv cache memory|gpu kv cache size"),
        ("recording CUDA graphs", r"captur\w+ cuda ?graph|graph captur\w+"),
        ("opening the address", r"application startup|started server process|uvicorn running"
         r"|starting vllm.*server|available routes"),
        ("loading the engine", r"initializing a? ?v1 llm engine|enginecore|non-default args"),
    )
)  # fmt: skip


def stage_of(line: str) -> str | None:
    """Name what a line of an engine's log says that it is doing; None where it says nothing.

    A share of 1 to 100 % is kept: `loading the weights (50 %)`.
    """
    for name, pattern in _STAGES:
        if pattern.search(line):
            share = _PERCENT.search(line)
            return f"{name} ({share[1]} %)" if share else name
    return None
