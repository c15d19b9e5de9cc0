from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from support.markdown import ROOT, blocks

from deepseek_ocr_loaders.engines.base import ServerOptions
from deepseek_ocr_loaders.engines.docker import DEFAULT_IMAGE
from deepseek_ocr_loaders.engines.vllm import DEFAULT_MODEL, serve_arguments

if TYPE_CHECKING:
    import pytest


def test_the_command_line_is_the_one_that_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    started = serve_arguments(
        ServerOptions(engine="vllm", model=DEFAULT_MODEL, copies=2),
        release=(0, 26),
        cpu_only=False,
        host="127.0.0.1",
        port=1,
        model=DEFAULT_MODEL,
        gpu_memory_gib=140.0,
    )
    told = [
        shlex.split(block.text.replace("\\\n", " "))[1:]
        for block in blocks(ROOT / "docs" / "gpu.md")
        if block.text.startswith("vllm serve")
    ]
    # Where it listens and what it is called is of no interest there.
    assert started[2:8] == [
        *("--host", "127.0.0.1", "--port", "1"),
        *("--served-model-name", DEFAULT_MODEL),
    ]
    assert told == [[*started[:2], *started[8:]]]


def test_the_image_is_the_one_that_is_run() -> None:
    page = (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")
    name, _, tag = DEFAULT_IMAGE.partition(":")
    assert page.count(f"{name}:") == page.count(DEFAULT_IMAGE) + page.count(f"{name}:TAG")
    assert tag
