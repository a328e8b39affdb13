"""Images with random crops that depend only on seed, epoch and image."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch

from course.data import one_thread

MULTIPLIER = 1_000_003  # a prime, so that different (seed, epoch, image) rarely give the same seed


class Seeded:
    """A set of images whose crops are drawn from seed, epoch and the image's number.

    A DataLoader's worker has one sequence of random numbers for all images that it happens to load.
    Its crops change with the number of workers, and to continue in the middle of an epoch, all
    images before would have to be loaded again. Here, a crop depends on the image's number only. If
    an epoch uses the images several times, they have the same crops again.

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
        seed = (self.seed * MULTIPLIER + int(self._epoch)) * MULTIPLIER + index
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(seed % 2**63)  # only the CPU's generator
        try:
            return self.images[index]
        finally:
            torch.set_rng_state(state)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the images of a batch, for DataLoader."""
        with one_thread():
            return [self[index] for index in indices]
