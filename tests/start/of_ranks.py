"""Functions that ranks execute, by name: each process of the test run finds this folder."""

from torch import distributed


def fails_on_one(rank: int, count: int) -> None:
    if rank == 1:
        raise ValueError("it is mine")
    distributed.barrier()
