"""Functions that ranks execute by name: each process of the test run can import this folder."""

import os
import sys
from pathlib import Path
from typing import Any

from torch import distributed

SCRIPTS = str(Path(__file__).parents[1] / "scripts")


def fails_on_one(rank: int, count: int) -> None:
    if rank == 1:
        raise ValueError("it is mine")
    distributed.barrier()


def visible_gpus(rank: int, count: int) -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def narrow_row(rank: int, count: int, setting: Any, log: Any) -> dict:
    """Measure a row of the benchmark with narrow networks."""
    sys.path.append(SCRIPTS)
    import narrow_networks

    from labs.lab_networks import bench

    narrow_networks.use()
    return bench.measure_rank(rank, count, setting, log)
