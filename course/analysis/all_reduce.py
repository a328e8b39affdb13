"""Measure all-reduces of different sizes between a job's ranks.

    course run course/analysis/all_reduce.py --gpus 2                   # on CPUs
    course run course/analysis/all_reduce.py --gpus 4 --rung device --set hosts=2

Rank 0 writes all_reduce.jsonl into the run's folder, one row per size: ranks and hosts, bytes that
each rank contributes, and the seconds of one all-reduce as quartiles of several blocks.
"""

import json
import time

import numpy as np
import torch
from torch import distributed

from course.training.rank_group import join_group
from course.training.recorder import recording

SIZES = [4**power for power in range(5, 14)]  # bytes: 1 KiB to 64 MiB
BLOCKS = 7
LARGE = 2**20  # bytes; larger messages are sent once or twice per block


def all_reduce_s(size: int, device: torch.device) -> list[float]:
    """Return the quartiles of an all-reduce of `size` bytes, in seconds."""
    is_cpu = device.type == "cpu"
    values, count = torch.zeros(size // 4, device=device), 2 if is_cpu and size > LARGE else 20
    seconds = []
    for _ in range(BLOCKS + 1):
        distributed.barrier()
        if not is_cpu:
            torch.accelerator.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            distributed.all_reduce(values)
        if not is_cpu:
            torch.accelerator.synchronize()
        seconds.append((time.perf_counter() - begin) / count)
    return np.percentile(seconds[1:], [25, 50, 75]).tolist()  # the first one also connects


if __name__ == "__main__":  # a job runs it; labs import this package's modules
    with recording() as run:
        device = join_group(run)
        run.set(**run.describe(device))
        rows = [
            {
                "ranks": run.world_size,
                "hosts": run.config.hosts,
                "bytes": size,
                "seconds": all_reduce_s(size, device),
            }
            for size in SIZES
        ]
        if run.rank == 0 and run.folder:
            (run.folder / "all_reduce.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
        distributed.destroy_process_group()
