"""Measure all-reduces of different sizes between a job's ranks.

    course run course/analysis/all_reduce.py --gpus 2                   # on CPUs
    course run course/analysis/all_reduce.py --gpus 4 --rung device --set hosts=2

Rank 0 writes all_reduce.jsonl into the run's folder, one row per size: ranks and hosts, bytes that
each rank contributes, and the seconds of one all-reduce as quartiles of several blocks.
"""

import json

from torch import distributed

from course.training.rank_group import join_group
from course.training.recorder import recording
from trainspeed.timing import quartiles, time_all_reduce

SIZES = [4**power for power in range(5, 14)]  # bytes: 1 KiB to 64 MiB

if __name__ == "__main__":  # a job runs it; labs import this package's modules
    with recording() as run:
        device = join_group(run)
        run.set(**run.describe(device))
        rows = [
            {
                "ranks": run.world_size,
                "hosts": run.config.hosts,
                "bytes": size,
                "seconds": quartiles(time_all_reduce(size, device)),
            }
            for size in SIZES
        ]
        if run.rank == 0 and run.folder:
            (run.folder / "all_reduce.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
        distributed.destroy_process_group()
