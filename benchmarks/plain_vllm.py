"""`vllm serve` as a person types it, without this package's managed server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from deepseek_ocr_loaders.engines.vllm import NGRAM_PROCESSOR, find

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

OFFICIAL = (
    *("--logits-processors", NGRAM_PROCESSOR),
    "--no-enable-prefix-caching",
    *("--mm-processor-cache-gb", "0"),
)
"""The arguments of DeepSeek's recipe in vLLM's documentation."""
SERVED = "deepseek-ai/DeepSeek-OCR"


class PlainVllm:
    """One server on a free port; started at once, waited for by `wait`, a context manager.

    Args:
        model: A hub id or a folder.
        arguments: Of `vllm serve`.
        log: A file for its output.
        env: Variables added to the environment.
        dummy: The folder has no weights.
    """

    def __init__(
        self,
        model: str,
        arguments: Sequence[str],
        *,
        log: Path,
        env: dict[str, str] | None = None,
        dummy: bool = False,
    ) -> None:
        installed = find()
        command = installed.command if installed else (sys.executable, "-m", "vllm")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.model = SERVED if Path(model).is_dir() else model
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.log = log
        words = [*command, "serve", model, "--served-model-name", self.model]
        words += ["--host", "127.0.0.1", "--port", str(port), *arguments]
        if dummy:
            words += ["--load-format", "dummy"]
        self.started = time.monotonic()
        with log.open("w") as output:
            self.process = subprocess.Popen(
                words,
                env={**os.environ, "VLLM_NO_USAGE_STATS": "1", **(env or {})},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, seconds: float = 900) -> float:
        """Wait until it is ready, and give the seconds that its start took."""
        while time.monotonic() - self.started < seconds:
            try:
                with urllib.request.urlopen(f"{self.base_url.removesuffix('/v1')}/health"):
                    return time.monotonic() - self.started
            except OSError:
                time.sleep(0.5)
            if self.process.poll() is not None:
                break
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])
        msg = f"vLLM did not start:\n{tail}"
        raise RuntimeError(msg)

    def stop(self) -> None:
        """End it with all of its processes."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
