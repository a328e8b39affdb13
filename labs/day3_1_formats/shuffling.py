"""In which order images come: shuffled truly, shard by shard, or out of a buffer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from course.data.formats.shards import shuffled


def orders(
    images: int = 4096, shards: int = 16, buffers: Iterable[int] = (100, 1000), seed: int = 0
) -> dict[str, np.ndarray]:
    """Where in the files lies what comes first, second, … in an epoch.

    Returns:
        By the name of the way, each of shape (images,): the place in all shards laid end to end,
        in the order in which one reader sends them to the network.

    Raises:
        ValueError: images that do not make equal shards.
    """
    if images % shards:
        raise ValueError(f"{images} images do not make {shards} equal shards")
    random = np.random.default_rng(seed)
    whole = np.arange(images).reshape(shards, -1)
    by_shard = whole[random.permutation(shards)].ravel()
    found = {"true shuffle": random.permutation(images), "order of shards only": by_shard}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for buffer in buffers:
            name = f"and a buffer of {buffer:,}"
            found[name] = np.array([*shuffled(iter(by_shard.tolist()), buffer)])
    return found
