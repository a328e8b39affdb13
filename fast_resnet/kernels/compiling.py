"""Compiling kernels before they are launched, all at once.

Triton compiles a kernel when it is first launched, and the step waits: ResNet-50's has 63 of them,
half a core-second each. Nearly all of that is in C++ and in an assembler, without Python's lock: so
threads are enough to keep all cores busy.
"""

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.runtime.errors import OutOfResources

from fast_resnet import _compat

# A product and the sum behind it are rounded once. Until Triton 3.10 nobody has to ask for that.
OPTIONS = {"enable_fp_fusion": True}


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel. Of one that is noted and not made, tensors are meta: without memory."""

    kernel: Any
    grid: tuple
    arguments: tuple
    options: dict

    @property
    def key(self) -> tuple:
        """Equal only for launches that the same compiled kernel serves: what Triton makes of a
        tensor depends on its type, and on whether it begins at a multiple of 16 bytes."""
        seen = [
            (each.dtype, each.data_ptr() % 16 == 0) if isinstance(each, torch.Tensor) else each
            for each in self.arguments
        ]
        return self.kernel.__name__, *seen, *sorted(self.options.items())

    def compiled(self) -> Any:
        """The compiled kernel; one that is not known yet is compiled, or in a thread's hands."""
        return self.kernel.warmup(*self.arguments, grid=self.grid, **OPTIONS, **self.options)

    def run(self) -> None:
        self.kernel[self.grid](*self.arguments, **OPTIONS, **self.options)


@dataclass
class Report:
    """How many kernels were made ready, by how many threads; seconds to compile and to load."""

    kernels: int
    threads: int
    compile_s: float
    load_s: float


def compile_at_once(launches: Sequence[Launch], device: torch.device) -> Report:
    """Compile what these launches need, and load it on the device.

    Raises:
        Exception: whatever Triton raises for a kernel that it cannot compile.
    """
    distinct = _turned([*{each.key: each for each in launches}.values()])
    threads, begin = _threads(), time.perf_counter()

    def begin_thread() -> None:
        if device.type == "cuda":  # which GPU is the current one, each thread knows for itself
            torch.cuda.set_device(device)

    with ThreadPoolExecutor(threads, initializer=begin_thread) as pool:
        # An error is not lost: a kernel that fails here is tried again by the line that follows.
        with triton.AsyncCompileMode(pool, ignore_errors=True):
            for each in distinct:
                each.compiled()
        _compat.forget_failed_kernels(each.kernel for each in distinct)
        kernels = {id(kernel): kernel for kernel in (each.compiled() for each in distinct)}
        compiled = time.perf_counter()
        # One thread for all of a name: their launcher, which Triton 3.6 makes by a C compiler, is
        # the same, and the second finds it in the cache.
        by_name = defaultdict(list)
        for kernel in kernels.values():
            by_name[kernel.name].append(kernel)
        list(pool.map(_load, by_name.values()))
    return Report(len(kernels), threads, compiled - begin, time.perf_counter() - compiled)


def _threads() -> int:
    """One for each core that this process may use, shared with the ranks beside it; a task of
    Slurm's has its cores to itself."""
    cores = len(os.sched_getaffinity(0))
    own = min(cores, int(os.environ.get("SLURM_CPUS_PER_TASK", "1")))
    return max(own, cores // _ranks()[1])


def _ranks() -> tuple[int, int]:
    """This one's number on its machine, and how many there are."""
    return int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _turned(launches: list[Launch]) -> list[Launch]:
    """First a share of this rank's own, then the others' from their ends: what one has compiled,
    the others find in the cache. From their beginnings, two would make the same side by side."""
    rank, ranks = _ranks()
    begin, end = (share * len(launches) // ranks for share in (rank, rank + 1))
    return [*launches[begin:end], *reversed([*launches[end:], *launches[:begin]])]


def _load(kernels: list[Any]) -> None:
    """Build their launchers, and bring them onto the GPU."""
    for kernel in kernels:
        try:
            kernel.run  # noqa: B018  (a property that does both when it is first asked for)
        except OutOfResources:  # whoever launches it is told again, and chooses another tile
            pass
