"""Runs that take turns in one job: who conducts them, where, and whether they fit together."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from course.config import Config
from course.records import write_atomically
from course.runs import Run

if TYPE_CHECKING:
    from course.conductor import Conductor

POLL_S = 0.1
NOT_TOGETHER = "{}"  # instead of an address
GIB = 1024**3
LIBRARIES_GIB = 0.8  # of a training process on a CPU, before its first tensor
CONTEXT_GIB = 1.0  # of a process on a GPU: CUDA's context, and work spaces of its libraries
# What an image of 224 px may take at most, whatever the network: ResNet-152 in fp32 takes 0.19.
IMAGE_GIB = 0.2


def address_file(run: Run) -> Path:
    """Where the group's conductor writes how it is reached; on the disk that all tasks share."""
    attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
    return run.job.folder / f"turns-{attempt}.json"


def first_node(run: Run) -> str:
    """The address of the job's first node, as its tasks reach it."""
    if run.launched.get("executor") == "slurm":
        # From there srun started the tasks.
        return os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    return "127.0.0.1"


def agree(run: Run, rank: int) -> tuple[bool, Conductor | None]:
    """Shall the runs of the job take turns? The first task decides, and conducts them.

    Returns:
        Whether they do, and in the first task who gives out the turns.
    """
    if len(run.together) == 1:
        return False, None
    path = address_file(run)
    if rank > 0:
        while not path.exists():
            if all(each.record for each in run.together):  # the first task gave up
                return False, None
            time.sleep(POLL_S)
        return path.read_text() != NOT_TOGETHER, None
    living = [each for each in run.together if not each.record]
    if len(living) < 2 or not fits(living):
        write_atomically(path, NOT_TOGETHER)
        return False, None
    from course.conductor import Conductor

    made = Conductor(living, first_node(run))
    made.publish(path)
    return True, made


def fits(runs: Sequence[Run]) -> bool:
    """Do the runs fit into this machine's memory, each process of theirs, at the same time?

    Where a rough upper bound does, nothing else is asked; else `memory.predict` tells the peak of
    each, which takes seconds.
    """
    on_gpu = any(run.config.device == "auto" for run in runs) and _gpu_free_gib() is not None
    free = _gpu_free_gib() if on_gpu else psutil.virtual_memory().available / GIB
    # On a GPU lies one process of each run; in the host's memory lie all of this node.
    processes = [run for run in runs for _ in range(1 if on_gpu else run.launched["gpus"])]
    fixed = CONTEXT_GIB if on_gpu else LIBRARIES_GIB
    if sum(fixed + _at_most_gib(run) for run in processes) <= free:
        return True
    found = dict(zip([run.folder for run in runs], _apart(partial(_peaks_gib, runs))))
    return sum(fixed + found.get(run.folder, math.inf) for run in processes) <= free


def _peaks_gib(runs: Sequence[Run]) -> list[float]:
    from course import memory

    return [memory.predict(_share(run)).peak_gib for run in runs]


def _apart(work: Callable[[], list[float]]) -> list[float]:
    """What `work` returns, done in a process of its own; [] where it fails.

    Autograd starts threads, and a process with threads can fork no training process.
    """
    processes = multiprocessing.get_context("fork")
    reader, writer = processes.Pipe(duplex=False)
    worker = processes.Process(target=lambda: writer.send(work()))
    worker.start()
    writer.close()
    try:
        return reader.recv()
    except EOFError:
        return []
    finally:
        worker.join()


def _share(run: Run) -> Config:
    """What one of the run's processes trains; on an accelerator, for which memory is predicted."""
    config = run.config
    return replace(config, device="auto", batch_size=config.batch_size // run.launched["gpus"])


def _at_most_gib(run: Run) -> float:
    share = _share(run)
    return IMAGE_GIB * share.batch_size * (share.image_px / 224) ** 2


def _gpu_free_gib() -> float | None:
    """What is free on this task's NVIDIA GPU; None without one. torch would have to open it.

    0 where the site gives each process a GPU of its own: then no two runs can share one.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        number = visible[min(local_rank, len(visible) - 1)] or "0"
        if number.isdigit():
            board = pynvml.nvmlDeviceGetHandleByIndex(int(number))
        else:
            board = pynvml.nvmlDeviceGetHandleByUUID(number)
        if pynvml.nvmlDeviceGetComputeMode(board) != pynvml.NVML_COMPUTEMODE_DEFAULT:
            return 0.0
        return pynvml.nvmlDeviceGetMemoryInfo(board).free / GIB
    except pynvml.NVMLError:
        return None
