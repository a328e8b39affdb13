"""Which rank sees which image of a training set, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def shares(
    images: int, ranks: int, share: int, *, epochs: int = 2, set_epoch: bool = True, seed: int = 0
) -> pd.DataFrame:
    """The images that each rank takes from PyTorch's DistributedSampler, in order.

    Columns: epoch, rank, step, image (its number in the set). Where `images` is no multiple of
    `ranks`, the sampler repeats some from its beginning, so that all ranks have equally many.

    Args:
        share: images that a rank takes in one step.
        set_epoch: tell the sampler the epoch; without it every epoch has the order of the first.
    """
    import pandas as pd
    from torch.utils.data import DistributedSampler

    rows = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(images), ranks, rank, seed=seed)
        for epoch in range(epochs):
            if set_epoch:
                sampler.set_epoch(epoch)
            rows += [(epoch, rank, at // share, image) for at, image in enumerate(sampler)]
    return pd.DataFrame(rows, columns=["epoch", "rank", "step", "image"])
