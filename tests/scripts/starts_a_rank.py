"""A script of a learner's own: it is rank 0, and starts rank 1 as a new Python."""

import multiprocessing
import sys

from torch import distributed


def train(rank: int, store: str) -> None:
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    objects = [None, None]
    distributed.all_gather_object(objects, f"rank {rank}")
    print(objects)
    distributed.destroy_process_group()


if __name__ == "__main__":
    other = multiprocessing.get_context("spawn").Process(target=train, args=(1, sys.argv[1]))
    other.start()
    train(0, sys.argv[1])
    other.join()
