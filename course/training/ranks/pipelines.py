"""One network as stages, each on a device of its own, and what sends results from one to the next.

The schedules are PyTorch's (torch.distributed.pipelining): GPipe (Huang et al. 2018,
arXiv:1811.06965), 1F1B and interleaved stages (Narayanan et al. 2021, arXiv:2104.04473), and one
that fills gaps with the gradients of weights (Qi et al. 2023, arXiv:2401.10241).
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

# Each by PyTorch's name, with how many stages a rank has.
SCHEDULES: dict[str, tuple[str, int]] = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zero_bubble": ("ScheduleInterleavedZeroBubble", 2),
}


class Contiguous(torch.autograd.Function):
    """Features, and in backward their gradients, as gloo sends them: contiguous.

    They are copied in any case. A view would do to be sent, but a schedule that computes gradients
    of weights later must be able to let go of what a stage gave.
    """

    @staticmethod
    def forward(ctx: Any, features: torch.Tensor) -> torch.Tensor:
        """Features of any strides; they come back contiguous."""
        return features.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> torch.Tensor:
        """The same for their gradients."""
        return gradients.contiguous()


class Stage(nn.Module):
    """A part of a network, under autocast by itself, that takes and gives what gloo can send."""

    def __init__(self, part: nn.Module, autocast: AbstractContextManager) -> None:
        super().__init__()
        self.part, self._autocast = part, autocast

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """A micro-batch of the stage before it, to what the next one gets."""
        with self._autocast:
            result = self.part(Contiguous.apply(features))
        return Contiguous.apply(result)


def numbers_of(pipeline: str, rank: int, ranks: int) -> tuple[list[int], int]:
    """Which stages a rank has, and how many there are.

    Where a rank has two, they lie `ranks` apart, so that images pass through all ranks twice.
    """
    count = ranks * SCHEDULES[pipeline][1]
    return [*range(rank, count, ranks)], count


def schedule_of(pipeline: str, stages: Sequence[Any], micro_batches: int, loss: Callable) -> Any:
    """PyTorch's schedule by the config's name, for this rank's stages."""
    from torch.distributed import pipelining  # only here: most scripts have no stages

    name, each = SCHEDULES[pipeline]
    own = stages[0] if each == 1 else [*stages]
    return getattr(pipelining, name)(own, micro_batches, loss_fn=loss)


def parts(net: nn.Module, count: int, cut: str = "gflop", image_px: int = 224) -> list[nn.Module]:
    """A network as `count` parts, one after the other, which together compute what it does.

    Args:
        cut: "gflop" or "weights", of which the largest part is to have as little as can be; or
            the numbers of the blocks with which the parts after the first begin, as in "4,9".

    Raises:
        ValueError: more parts than blocks, or numbers that do not make so many.
    """
    every = pieces(net)
    blocks = len(every) - 2
    if count > blocks:
        raise ValueError(f"{count} stages, and {blocks} blocks: use fewer ranks, or a deeper model")
    if cut in ("gflop", "weights"):
        begins = balanced([each[cut] for each in costs(net, image_px)], count)
    else:
        begins = [int(each) + 1 for each in cut.split(",")]  # before the blocks lies the stem
        if len(begins) != count - 1 or begins[0] < 1 or begins[-1] > blocks:
            raise ValueError(
                f"cut={cut!r}: {count} stages need the {count - 1} blocks at which all but the "
                f"first begin, of 1 to {blocks - 1}"
            )
    return [nn.Sequential(*every[a:b]) for a, b in pairwise([0, *begins, len(every)])]


def costs(net: nn.Module, image_px: int) -> list[dict[str, float]]:
    """Of each piece of a network, in order, "weights" and the "gflop" of an image's forward pass.

    Pieces are what comes before the blocks, each of them, and what comes behind.
    """
    found, features = [], torch.empty(1, 3, image_px, image_px, device="meta")
    known: dict[tuple[str, torch.Size], tuple[torch.Tensor, float]] = {}  # most blocks are alike
    for piece in pieces(deepcopy(net).to("meta").eval()):
        if (alike := (str(piece), features.shape)) not in known:
            with torch.no_grad(), (counter := FlopCounterMode(display=False)):
                known[alike] = piece(features), counter.get_total_flops() / 1e9
        features, gflop = known[alike]
        found.append({"weights": models.parameter_count(piece), "gflop": gflop})
    return found


def balanced(cost: Sequence[float], count: int) -> list[int]:
    """Where to cut so that the dearest part is as cheap as can be; none is without a block.

    Each way to cut what lies before a piece goes on from the best one with a part less.
    """
    sums, last = [0, *accumulate(cost)], len(cost) - 1
    best: dict[int, tuple[float, list[int]]] = {at: (sums[at], []) for at in range(2, last + 2)}
    for _ in range(count - 1):
        best = {
            end: min(
                (max(dearest, sums[end] - sums[at]), [*begins, at])
                for at, (dearest, begins) in best.items()
                if at < min(end, last)
            )
            for end in list(best)[1:]
        }
    return best[len(cost)][1]


def pieces(net: nn.Module) -> list[nn.Module]:
    """What comes before the blocks, each block, and what comes behind the last one."""
    blocks = models.blocks(net)
    if hasattr(net, "layer1"):  # a ResNet
        front = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        return [front, *blocks, nn.Sequential(net.avgpool, nn.Flatten(), net.fc)]
    if hasattr(net, "stages"):  # CoAtNet
        return [net.stem, *blocks, nn.Sequential(net.norm, net.head)]
    front, back = _emptied(net), _emptied(net)  # ViT, whose ends are methods
    for name in ("norm", "fc_norm", "head"):
        setattr(front, name, nn.Identity())
    back.patch_embed, back.cls_token, back.pos_embed = nn.Identity(), None, None
    return [_Called(front, "forward_features"), *blocks, _Called(back, "norm", "forward_head")]


def _emptied(net: nn.Module) -> nn.Module:
    """A copy of a transformer without its blocks."""
    blocks, net.blocks = net.blocks, nn.Identity()
    try:
        return deepcopy(net)
    finally:
        net.blocks = blocks


class _Called(nn.Module):
    """A network of which some methods are called, one after the other."""

    def __init__(self, net: nn.Module, *names: str) -> None:
        super().__init__()
        self.net, self._names = net, names

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        for name in self._names:
            features = getattr(self.net, name)(features)
        return features
