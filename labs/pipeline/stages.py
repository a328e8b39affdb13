"""Stages of a pipeline: where to cut a network."""

from __future__ import annotations

import time
from itertools import pairwise

import pandas as pd
import torch

from course.training import models
from labs.pipeline import pipelines
from trainspeed.resources import core_count

CLASSES = 16  # of the default images
REPEATS = 3  # of each piece's timing, of which the shortest counts


def measure_pieces(model: str, image_px: int, images: int) -> pd.DataFrame:
    """Measure the pieces of a network: what comes before the blocks, each block, and the rest.

    Columns: piece, weights_m (millions), gflop (of an image's forward pass), ms (forward and
    backward of all images, with the threads of a rank of two).
    """
    torch.manual_seed(0)
    net = models.create(model, CLASSES, image_px)
    table = pd.DataFrame(pipelines.piece_costs(net, image_px))
    names = ["front", *map(str, range(len(table) - 2)), "back"]
    pieces = pipelines.pieces(net.to(memory_format=torch.channels_last))
    inputs = torch.randn(images, 3, image_px, image_px)
    threads, best_ms = torch.get_num_threads(), [float("inf")] * len(pieces)
    torch.set_num_threads(max(1, core_count() // 2))
    try:
        for _ in range(REPEATS):
            features = inputs
            for number, piece in enumerate(pieces):
                features = features.detach().requires_grad_(number > 0)
                begin = time.perf_counter()
                features = piece(features)
                features.backward(torch.ones_like(features))
                best_ms[number] = min(best_ms[number], 1e3 * (time.perf_counter() - begin))
    finally:
        torch.set_num_threads(threads)
    weights_m = table["weights"] / 1e6
    return pd.DataFrame(
        {"piece": names, "weights_m": weights_m, "gflop": table["gflop"], "ms": best_ms}
    )


def balanced_splits(table: pd.DataFrame) -> dict[str, str]:
    """Return the `stage_split` of two stages that balances each column of `measure_pieces`."""
    columns = {"weights": "weights_m", "GFLOP": "gflop", "your times": "ms"}
    begins = {name: pipelines.balance(table[key].tolist(), 2) for name, key in columns.items()}
    return {name: ",".join(str(begin - 1) for begin in cut) for name, cut in begins.items()}


def stage_ranges(table: pd.DataFrame, stage_split: str) -> list[tuple[int, int]]:
    """Return each stage's first row, and the one after its last."""
    return [*pairwise([0, *(int(block) + 1 for block in stage_split.split(",")), len(table)])]
