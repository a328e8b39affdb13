"""Images whose random crops follow from what they are, not from who loads them, or when."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch

from course.data.images import one_thread

MULTIPLIER = 1_000_003  # a prime, so that (seed, epoch, image) hardly ever meet another three


class Seeded:
    """A set of images, each of which draws its crop from seed, epoch and its own number.

    A DataLoader's worker has one row of random numbers for all images that it happens to get. So
    the crops change with the number of workers, and a training that goes on in the middle of an
    epoch would have to load all that came before again. Here an image's crop needs nothing but its
    number. Where an epoch goes through the images several times, they have the same crops again.

    Args:
        images: a map-style dataset.
        seed: of the run.
    """

    def __init__(self, images: Sized, seed: int) -> None:
        self.images, self.seed = images, seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that stay see it

    def __len__(self) -> int:
        return len(self.images)

    def __getattr__(self, name: str) -> Any:
        if name == "images":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.images, name)

    def set_epoch(self, epoch: int) -> None:
        """Draw otherwise from here on, before the epoch's first image is asked for."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Any:
        own = (self.seed * MULTIPLIER + int(self._epoch)) * MULTIPLIER + index
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(own % 2**63)  # the processor's alone
        try:
            return self.images[index]
        finally:
            torch.set_rng_state(before)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """The images of a batch, as DataLoader asks for them."""
        with one_thread():
            return [self[index] for index in indices]
