"""Functions that ranks execute by name: each process of the test run can import this folder."""

import os
import pickle
from pathlib import Path

from torch import distributed
from torch.distributed import distributed_c10d


class Planted:
    """Whoever loads its pickle creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def sends_code(rank: int, count: int, path: Path) -> None:
    """Rank 1 is like a process of someone else, who took its place."""
    if rank == 1:
        distributed_c10d._pickler = pickle.Pickler
    distributed.broadcast_object_list([Planted(path)], src=1)
    distributed.barrier()


def fails_on_one(rank: int, count: int) -> None:
    if rank == 1:
        raise ValueError("it is mine")
    distributed.barrier()


def visible_gpus(rank: int, count: int) -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]
