"""How busy the GPU is while something runs, by `nvidia-smi`; nothing where there is none."""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class GpuWatch:
    """Samples the first GPU twice a second; a context manager.

    Attributes:
        samples: Share of the time in which a kernel ran, 0 to 100, by sample.
    """

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if shutil.which("nvidia-smi"):
            command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--id=0", "-lms", "500"]
            self._process = subprocess.Popen(
                [*command, "--format=csv,noheader,nounits"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip().isdigit():
                self.samples.append(float(line))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def busy(self) -> float | None:
        """The mean share, in percent; None where there is no GPU."""
        return sum(self.samples) / len(self.samples) if self.samples else None


def memory_used_mib() -> int | None:
    """Give the memory in use on the first GPU, in MiB; None where there is none."""
    if not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--id=0", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.stdout.strip().isdigit() else None
