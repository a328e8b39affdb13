"""Where to cut a network: what its pieces hold, compute, and take here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from course.training import models
from course.training.ranks import pipelines

if TYPE_CHECKING:
    import pandas as pd

CLASSES = 16  # of the default images
TIMES = 3  # each piece is timed so often; the quickest counts


def pieces(model: str, image_px: int, images: int) -> pd.DataFrame:
    """What a network is made of, in the order in which images pass: a row a piece.

    Columns: piece (what comes before the blocks, each block by its number, and what comes behind);
    weights_m, millions; gflop of an image's forward pass; ms, forward and backward of so many
    images, measured here and now with as many threads as a rank of two has.
    """
    import pandas as pd

    torch.manual_seed(0)
    net = models.create(model, CLASSES, image_px)
    costs = pipelines.piece_costs(net, image_px)
    net = net.to(memory_format=torch.channels_last)  # as the script has it
    took = _timed(pipelines.pieces(net), torch.randn(images, 3, image_px, image_px))
    names = ["front", *map(str, range(len(costs) - 2)), "back"]
    return pd.DataFrame(
        {
            "piece": names,
            "weights_m": [each["weights"] / 1e6 for each in costs],
            "gflop": [each["gflop"] for each in costs],
            "ms": took,
        }
    )


def _timed(every: Sequence[torch.nn.Module], images: torch.Tensor) -> list[float]:
    """Milliseconds of each piece, forward and backward, on one thread."""
    threads, best = torch.get_num_threads(), [float("inf")] * len(every)
    torch.set_num_threads(1)
    try:
        for _ in range(TIMES):
            features = images
            for at, piece in enumerate(every):
                given = features.detach().requires_grad_(at > 0)
                start = time.perf_counter()
                features = piece(given)
                features.backward(torch.ones_like(features))
                best[at] = min(best[at], 1e3 * (time.perf_counter() - start))
    finally:
        torch.set_num_threads(threads)
    return best


def cut_by(table: pd.DataFrame, column: str, stages: int = 2) -> str:
    """Where to cut so that the stage with most of a column has as little as can be: "4,9", say.

    Returns:
        What a config's `cut` takes: the blocks at which all stages but the first begin.
    """
    begins = pipelines.balance(table[column].tolist(), stages)
    return ",".join(str(begin - 1) for begin in begins)


def stages_of(table: pd.DataFrame, cut: str) -> list[tuple[int, int]]:
    """Of each stage the row of its first piece, and the one behind its last."""
    return [*pairwise([0, *(int(block) + 1 for block in cut.split(",")), len(table)])]
