"""A network as pipeline stages, each on its own device.

The schedules are PyTorch's (torch.distributed.pipelining): GPipe (Huang et al. 2018,
arXiv:1811.06965), 1F1B (PipeDream, Narayanan et al. 2019; with one update per batch,
arXiv:2006.09503), interleaved stages (Narayanan et al. 2021, arXiv:2104.04473), and one that fills
gaps with the gradients of weights (Qi et al. 2023, arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course.training import models

# PyTorch's name of each schedule, and the stages per rank.
SCHEDULES: dict[str, tuple[str, int]] = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zero_bubble": ("ScheduleInterleavedZeroBubble", 2),
}


class Contiguous(torch.autograd.Function):
    """Makes features, and their gradients in backward, contiguous, as gloo requires.

    Features are always copied: a schedule that computes gradients of weights later must be able to
    free the output of a stage, which a view would keep.
    """

    @staticmethod
    def forward(ctx: Any, features: torch.Tensor) -> torch.Tensor:
        return features.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> torch.Tensor:
        return gradients.contiguous()


class Stage(nn.Module):
    """A part of a network under autocast, with inputs and outputs that gloo can send."""

    def __init__(self, part: nn.Module, autocast: AbstractContextManager) -> None:
        super().__init__()
        self.part, self._autocast = part, autocast

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        with self._autocast:
            result = self.part(Contiguous.apply(features))
        return Contiguous.apply(result)


def stage_numbers(pipeline: str, rank: int, ranks: int) -> tuple[list[int], int]:
    """Return the numbers of a rank's stages, and the number of all stages.

    Two stages of a rank are `ranks` apart, so that images pass through all ranks twice.
    """
    count = ranks * SCHEDULES[pipeline][1]
    return [*range(rank, count, ranks)], count


def create_schedule(
    pipeline: str, stages: Sequence[Any], micro_batches: int, loss: Callable
) -> Any:
    """Create PyTorch's schedule, by the name in the config, for the stages of this rank."""
    from torch.distributed import pipelining  # most scripts have no stages

    name, count = SCHEDULES[pipeline]
    stages = stages[0] if count == 1 else [*stages]
    return getattr(pipelining, name)(stages, micro_batches, loss_fn=loss)


def split(
    net: nn.Module, count: int, stage_split: str = "gflop", image_px: int = 224
) -> list[nn.Module]:
    """Split a network into `count` parts that compute the same, one after another.

    Args:
        stage_split: "gflop" or "weights", to make the largest part as small as possible; or the
            numbers of the blocks with which the parts after the first begin, as in "4,9".

    Raises:
        ValueError: there are more parts than blocks, or the numbers do not give `count` parts.
    """
    modules = pieces(net)
    blocks = len(modules) - 2
    if count > blocks:
        raise ValueError(
            f"{count} stages, but only {blocks} blocks: use fewer ranks or a deeper model"
        )
    if stage_split in ("gflop", "weights"):
        begins = balance([cost[stage_split] for cost in piece_costs(net, image_px)], count)
    else:
        begins = [
            int(number) + 1 for number in stage_split.split(",")
        ]  # the first piece is the stem
        if len(begins) != count - 1 or begins[0] < 1 or begins[-1] > blocks:
            raise ValueError(
                f"stage_split={stage_split!r}: {count} stages need the numbers of the {count - 1} "
                f"blocks with which all but the first begin, from 1 to {blocks - 1}"
            )
    return [nn.Sequential(*modules[a:b]) for a, b in pairwise([0, *begins, len(modules)])]


def piece_costs(net: nn.Module, image_px: int) -> list[dict[str, float]]:
    """Return the "weights" of each piece, and the "gflop" of its forward pass for one image."""
    costs, features = [], torch.empty(1, 3, image_px, image_px, device="meta")
    cache: dict[tuple[str, torch.Size], tuple[torch.Tensor, float]] = {}  # most blocks are equal
    for piece in pieces(deepcopy(net).to("meta").eval()):
        if (key := (str(piece), features.shape)) not in cache:
            with torch.no_grad(), (counter := FlopCounterMode(display=False)):
                cache[key] = piece(features), counter.get_total_flops() / 1e9
        features, gflop = cache[key]
        costs.append({"weights": models.parameter_count(piece), "gflop": gflop})
    return costs


def balance(cost: Sequence[float], count: int) -> list[int]:
    """Return where to cut so that the most expensive part is as cheap as possible.

    Every part has a block. Dynamic programming: the best cuts into n parts up to each piece follow
    from the best cuts into n - 1 parts.
    """
    sums, last = [0, *accumulate(cost)], len(cost) - 1
    best: dict[int, tuple[float, list[int]]] = {at: (sums[at], []) for at in range(2, last + 2)}
    for _ in range(count - 1):
        best = {
            end: min(
                (max(highest, sums[end] - sums[at]), [*begins, at])
                for at, (highest, begins) in best.items()
                if at < min(end, last)
            )
            for end in list(best)[1:]
        }
    return best[len(cost)][1]


def pieces(net: nn.Module) -> list[nn.Module]:
    """Return a network's modules in order: those before the blocks, each block, those after."""
    blocks = models.blocks(net)
    if hasattr(net, "layer1"):  # a ResNet
        front = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        return [front, *blocks, nn.Sequential(net.avgpool, nn.Flatten(), net.fc)]
    if hasattr(net, "stages"):  # CoAtNet
        return [net.stem, *blocks, nn.Sequential(net.norm, net.head)]
    front, back = _without_blocks(net), _without_blocks(net)  # ViT, whose ends are methods
    for name in ("norm", "fc_norm", "head"):
        setattr(front, name, nn.Identity())
    back.patch_embed, back.cls_token, back.pos_embed = nn.Identity(), None, None
    return [_Methods(front, "forward_features"), *blocks, _Methods(back, "norm", "forward_head")]


def _without_blocks(net: nn.Module) -> nn.Module:
    """Copy a transformer without its blocks."""
    blocks, net.blocks = net.blocks, nn.Identity()
    try:
        return deepcopy(net)
    finally:
        net.blocks = blocks


class _Methods(nn.Module):
    """Calls some methods of a network, one after another."""

    def __init__(self, net: nn.Module, *names: str) -> None:
        super().__init__()
        self.net, self._names = net, names

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        for name in self._names:
            features = getattr(self.net, name)(features)
        return features
