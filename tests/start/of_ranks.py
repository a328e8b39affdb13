"""Functions that ranks execute, by name: each process of the test run finds this folder."""

import os
import sys
from pathlib import Path

from torch import distributed

SCRIPTS = str(Path(__file__).parents[1] / "scripts")


def fails_on_one(rank: int, count: int) -> None:
    if rank == 1:
        raise ValueError("it is mine")
    distributed.barrier()


def visible_gpus(rank: int, count: int) -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def compare_each(rank: int, count: int, scripts: list[str]) -> list[dict]:
    """Compare several scripts' layers with full ones, in networks without timm."""
    sys.path.append(SCRIPTS)
    import narrow

    from labs.day4_3_model_parallel.tensors import compare_on_rank

    narrow.use()
    return [compare_on_rank(rank, count, script) for script in scripts]


def narrow_row(rank: int, count: int, setting: dict, log: str, device: str) -> dict:
    """Measure a row of the benchmark with narrow networks."""
    sys.path.append(SCRIPTS)
    import narrow_networks

    from labs.lab_networks import bench

    narrow_networks.use()
    return bench.measure_rank(rank, count, setting, log, device)
