"""How vLLM is set to the machine: the numbers that decide the speed, in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Tuning", "copies", "tune"]

_LARGE_GPU = 120.0
"""GiB from which two copies of the model side by side were measured: an H200 has 140."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is decided from the machine.

    Attributes:
        max_num_seqs: Pages that the engine works on at once.
        renderer_workers: Threads that decode and cut pictures in the API server; 1 is vLLM's own.
        encoder_graphs: The image encoder runs from CUDA graphs, which take about 3 GiB.
        context_gib: Memory for the context; None leaves it to vLLM.
    """

    max_num_seqs: int
    renderer_workers: int
    encoder_graphs: bool
    context_gib: int | None = None


def copies(*, gpu_memory_gib: float | None, cores: int | None = None) -> int:
    """Give how many copies of the model keep the GPU busy.

    One engine prepares each step on one thread of the processor, and the GPU waits for it a third
    of the time. Two on one H200 read 15.5 pages/s where one reads 13.2 (`docs/performance.md`).

    Args:
        gpu_memory_gib: Memory of the GPU, in GiB; None where not known.
        cores: Processor cores that may be used; None counts them.
    """
    cores = _cores() if cores is None else cores
    return 2 if gpu_memory_gib is not None and gpu_memory_gib >= _LARGE_GPU and cores >= 12 else 1


def tune(
    *, cpu_only: bool, gpu_memory_gib: float | None, cores: int | None = None, copies: int = 1
) -> Tuning:
    """Decide for a machine.

    Args:
        cpu_only: vLLM runs on the processor.
        gpu_memory_gib: Memory of the smallest GPU that is used, in GiB; None where not known.
        cores: Processor cores that may be used; None counts them.
        copies: How many engines share the GPU and the cores.
    """
    if cpu_only:
        return Tuning(max_num_seqs=4, renderer_workers=1, encoder_graphs=False)
    cores = _cores() if cores is None else cores
    memory = gpu_memory_gib if gpu_memory_gib is not None else 16.0
    return Tuning(
        max_num_seqs=192 if copies > 1 else 256 if memory >= 38 else 128 if memory >= 15 else 48,
        # A quarter of the cores is left to the engine and the user's own drawing of pages.
        renderer_workers=max(1, min(12, cores * 3 // 4) // copies),
        # vLLM leaves a tenth of the memory free, and all graphs together took 3.4 GiB.
        encoder_graphs=memory >= 44,
        # Engines that measure what is free while others start get it wrong.
        context_gib=int(memory * 2 / 3 / copies) if copies > 1 else None,
    )


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
