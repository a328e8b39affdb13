"""Functions that ranks execute by name: each process of the test run can import this folder."""

import os

from torch import distributed


def fails_on_one(rank: int, count: int) -> None:
    if rank == 1:
        raise ValueError("it is mine")
    distributed.barrier()


def visible_gpus(rank: int, count: int) -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]
