"""What goes wrong between two stages, tried on real ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import distributed, nn
from torch.distributed import pipelining

from course.training.ranks.pipelines import Stage
from labs.day4_2_fsdp.processes import on_ranks

if TYPE_CHECKING:
    import pandas as pd

RANKS, IMAGES, TOKENS, CHANNELS = 2, 8, 4, 6
WAITS = timedelta(seconds=3)  # for a rank that has failed
LETTERS = 70  # of what PyTorch says


class Turned(nn.Module):
    """A layer over tokens instead of channels: its result is contiguous, and gradients are not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(TOKENS, TOKENS)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features.transpose(1, 2)).transpose(1, 2).contiguous()


def traps() -> pd.DataFrame:
    """Three traps of a pipeline, two of them beside the way out: what PyTorch said on each rank.

    A row a trap, a column a rank; "" where a rank had nothing to say. Two ranks over gloo try them
    in turn. `attrs` hold PyTorch's version, "torch".
    """
    import pandas as pd

    said = on_ranks(_try_all, RANKS)
    table = pd.DataFrame({f"rank {rank}": each for rank, each in enumerate(said)})
    table.attrs["torch"] = torch.__version__.partition("+")[0]
    return table


def _try_all(rank: int, ranks: int) -> dict[str, str]:
    ways: dict[str, Callable[[], None]] = {
        "turned gradients, sent as they are": lambda: _step(rank, contiguous=False),
        "turned gradients, made contiguous": lambda: _step(rank),
        "7 images in micro-batches of 2": lambda: _step(rank, images=IMAGES - 1),
        "zero bubble in a V": lambda: _step_in_v(rank),
    }
    said = {}
    for name, way in ways.items():
        said[name] = _said(way)
        distributed.barrier()  # who failed waits for whom it let wait
    return said


def _said(way: Callable[[], None]) -> str:
    try:
        way()
    except Exception as error:  # whatever a rank says is what is to be seen
        cause = error.__cause__ or error
        words = re.sub(r"^\[\S*\]\s*", "", " ".join(str(cause).split()))  # gloo's own file and line
        return f"{type(cause).__name__}: {words[:LETTERS]}"
    return ""


def _step(rank: int, *, contiguous: bool = True, images: int = IMAGES) -> None:
    stage = _stage(rank, RANKS, distributed.new_group(timeout=WAITS), contiguous)
    _train(rank, pipelining.ScheduleGPipe(stage, IMAGES // 2, loss_fn=_loss), images)


def _step_in_v(rank: int) -> None:
    """Two stages a rank, of which the last lies where the first does."""
    group, count = distributed.new_group(timeout=WAITS), 2 * RANKS
    stages = [_stage(number, count, group) for number in (rank, count - 1 - rank)]
    _train(rank, pipelining.ScheduleZBVZeroBubble(stages, IMAGES // 2, loss_fn=_loss), IMAGES)


def _stage(
    number: int, count: int, group: distributed.ProcessGroup, contiguous: bool = True
) -> pipelining.PipelineStage:
    torch.manual_seed(number)
    part = Turned()
    own = Stage(part, torch.autocast("cpu", enabled=False)) if contiguous else part
    return pipelining.PipelineStage(own, number, count, torch.device("cpu"), group=group)


def _train(rank: int, schedule: object, images: int) -> None:
    features = torch.randn(images, TOKENS, CHANNELS)
    first = [features] * (rank == 0)  # only the rank of the first stage; PyTorch 2.11 insists
    schedule.step(*first, target=features)


def _loss(result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(result, target)
