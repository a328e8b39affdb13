"""Stages of a pipeline: where to cut a network, and what goes wrong between two stages."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pandas as pd
import torch
from torch import distributed, nn
from torch.distributed import pipelining

from course.analysis.ranks import on_ranks
from course.training import models
from labs.day4_3_model_parallel import pipelines
from labs.day4_3_model_parallel.pipelines import Stage

CLASSES = 16  # of the default images
REPEATS = 3  # of each piece's timing, of which the shortest counts
RANKS, IMAGES, TOKENS, CHANNELS = 2, 8, 4, 6  # of the traps


def measure_pieces(model: str, image_px: int, images: int) -> pd.DataFrame:
    """Measure the pieces of a network: what comes before the blocks, each block, and the rest.

    Columns: piece, weights_m (millions), gflop (of an image's forward pass), ms (forward and
    backward of all images on one thread, as a rank of two has).
    """
    torch.manual_seed(0)
    net = models.create(model, CLASSES, image_px)
    table = pd.DataFrame(pipelines.piece_costs(net, image_px))
    names = ["front", *map(str, range(len(table) - 2)), "back"]
    pieces = pipelines.pieces(net.to(memory_format=torch.channels_last))
    inputs = torch.randn(images, 3, image_px, image_px)
    threads, best_ms = torch.get_num_threads(), [float("inf")] * len(pieces)
    torch.set_num_threads(1)
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


def balanced_cut(table: pd.DataFrame, column: str) -> str:
    """Return the `stage_split` that balances a column of `measure_pieces` between two stages."""
    begins = pipelines.balance(table[column].tolist(), 2)
    return ",".join(str(begin - 1) for begin in begins)


def stage_ranges(table: pd.DataFrame, stage_split: str) -> list[tuple[int, int]]:
    """Return each stage's first row, and the one after its last."""
    return [*pairwise([0, *(int(block) + 1 for block in stage_split.split(",")), len(table)])]


class TransposedLayer(nn.Module):
    """A layer over tokens instead of channels. Its gradients are not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(TOKENS, TOKENS)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features.transpose(1, 2)).transpose(1, 2).contiguous()


def try_traps() -> pd.DataFrame:
    """Try what goes wrong between two stages on two ranks; PyTorch's error on each, or "".

    `attrs` has PyTorch's version, "torch".
    """
    errors = on_ranks(_try_all, RANKS)
    table = pd.DataFrame({f"rank {rank}": of_rank for rank, of_rank in enumerate(errors)})
    table.attrs["torch"] = torch.__version__.partition("+")[0]
    return table


def _try_all(rank: int, ranks: int) -> dict[str, str]:
    cases: dict[str, Callable[[], None]] = {
        "turned gradients, sent as they are": lambda: _gpipe_step(rank, contiguous=False),
        "turned gradients, made contiguous": lambda: _gpipe_step(rank),
        "7 images in micro-batches of 2": lambda: _gpipe_step(rank, images=IMAGES - 1),
        "zero bubble in a V": lambda: _v_step(rank),
    }
    errors = {}
    for name, case in cases.items():
        errors[name] = ""
        try:
            case()
        except Exception as error:  # any error of a rank is a result
            cause = error.__cause__ or error
            message = re.sub(r"^\[\S*\]\s*", "", " ".join(str(cause).split()))  # of gloo
            errors[name] = f"{type(cause).__name__}: {message[:70]}"
        distributed.barrier()  # a rank that failed waits for the rank that waited for it
    return errors


def _gpipe_step(rank: int, *, contiguous: bool = True, images: int = IMAGES) -> None:
    stage = _stage(rank, RANKS, _group(), contiguous)
    _step(rank, pipelining.ScheduleGPipe(stage, IMAGES // 2, loss_fn=_loss), images)


def _v_step(rank: int) -> None:
    """Run two stages per rank; the last is on the rank of the first."""
    group, count = _group(), 2 * RANKS
    stages = [_stage(number, count, group) for number in (rank, count - 1 - rank)]
    _step(rank, pipelining.ScheduleZBVZeroBubble(stages, IMAGES // 2, loss_fn=_loss), IMAGES)


def _group() -> distributed.ProcessGroup:
    return distributed.new_group(timeout=timedelta(seconds=3))  # for a rank that has failed


def _stage(
    number: int, count: int, group: distributed.ProcessGroup, contiguous: bool = True
) -> pipelining.PipelineStage:
    torch.manual_seed(number)
    layer: nn.Module = TransposedLayer()
    if contiguous:
        layer = Stage(layer, torch.autocast("cpu", enabled=False))
    return pipelining.PipelineStage(layer, number, count, torch.device("cpu"), group=group)


def _step(rank: int, schedule: object, images: int) -> None:
    features = torch.randn(images, TOKENS, CHANNELS)
    inputs = [features] * (rank == 0)  # PyTorch 2.11 allows them only on the first stage's rank
    schedule.step(*inputs, target=features)


def _loss(result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(result, target)
