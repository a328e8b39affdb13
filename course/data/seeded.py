"""Random numbers that depend only on seed, epoch and image, so that training resumes anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any

import torch

from trainspeed.resources import one_thread

MULTIPLIER = 1_000_003  # a prime, so that different (seed, epoch, image) rarely give the same seed


def seed_of(*numbers: int) -> int:
    """Combine numbers, such as seed, epoch and image, to one seed."""
    seed = 0
    for number in numbers:
        seed = seed * MULTIPLIER + number
    return seed % 2**63


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Draw random numbers on the CPU from `seed_of(*numbers)` within this context."""
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed_of(*numbers))  # only the CPU's generator
    try:
        yield
    finally:
        torch.set_rng_state(state)


class Seeded:
    """A set of images whose crops are drawn from seed, epoch and the image's number.

    A DataLoader's worker has one sequence of random numbers for all images that it happens to load.
    Its crops change with the number of workers, and to continue in the middle of an epoch, all
    images before would have to be loaded again. Here, a crop depends on the image's number only.
    Number `len(self) + i` is image i again, with a different crop: for a second pass in an epoch.

    Args:
        images: a map-style dataset.
        seed: of the run.
    """

    def __init__(self, images: Sized, seed: int) -> None:
        self.images, self.seed = images, seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # for persistent workers

    def __len__(self) -> int:
        return len(self.images)

    def __getattr__(self, name: str) -> Any:
        if name == "images":  # during unpickling
            raise AttributeError(name)
        return getattr(self.images, name)

    def set_epoch(self, epoch: int) -> None:
        """Draw different crops; call it before the epoch's first image is loaded."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Any:
        with seeded(self.seed, int(self._epoch), index):
            return self.images[index % len(self.images)]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the images of a batch, for DataLoader."""
        with one_thread():
            return [self[index] for index in indices]
