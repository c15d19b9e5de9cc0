"""How vLLM is set to the machine: the numbers that decide the speed, in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Tuning", "tune"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is decided from the machine.

    Attributes:
        max_num_seqs: Pages that the engine works on at once.
        renderer_workers: Threads that decode and cut pictures in the API server; 1 is vLLM's own.
        encoder_graphs: The image encoder runs from CUDA graphs, which take about 17 GiB.
    """

    max_num_seqs: int
    renderer_workers: int
    encoder_graphs: bool


def tune(*, cpu_only: bool, gpu_memory_gib: float | None, cores: int | None = None) -> Tuning:
    """Decide for a machine.

    On an H200 with 16 cores and vLLM 0.26, 256 at once, 12 renderer threads and encoder graphs
    gave 11.8 pages/s where the plain recipe, 128 at once, gave 4.4 (`docs/performance.md`).

    Args:
        cpu_only: vLLM runs on the processor.
        gpu_memory_gib: Memory of the smallest GPU that is used, in GiB; None where not known.
        cores: Processor cores that may be used; None counts them.
    """
    if cpu_only:
        return Tuning(max_num_seqs=4, renderer_workers=1, encoder_graphs=False)
    if cores is None:
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    memory = gpu_memory_gib if gpu_memory_gib is not None else 16.0
    return Tuning(
        max_num_seqs=256 if memory >= 38 else 128 if memory >= 15 else 48,
        # A quarter of the cores is left to the engine and the user's own drawing of pages.
        renderer_workers=max(1, min(12, cores * 3 // 4)),
        encoder_graphs=memory >= 70,
    )
