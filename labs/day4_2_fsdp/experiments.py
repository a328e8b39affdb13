"""Sharding by formula and by hand: memory and messages."""

from __future__ import annotations

import inspect
from typing import Any

import pandas as pd
import torch
from torch import distributed, nn

from course.analysis.ranks import on_ranks
from course.config import GIB

# Bytes per weight in fp32: the weight, its gradient, and AdamW's two means.
BYTES = {"weights": 4, "gradients": 4, "optimizer": 8}
SHARDED = ((), ("optimizer",), ("optimizer", "gradients"), tuple(BYTES))  # by ZeRO stage
SIZE, IMAGES, STEPS = 64, 8, 5  # of the handmade layer


def zero_memory(parameters: int, ranks: int) -> pd.DataFrame:
    """Compute the GiB that each rank keeps between steps, without activations.

    Columns: stage (0 is DDP), kind, gib. From Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054,
    section 5), for weights in fp32 and AdamW.
    """
    rows = [
        (stage, kind, size * parameters / (ranks if kind in sharded else 1) / GIB)
        for stage, sharded in enumerate(SHARDED)
        for kind, size in BYTES.items()
    ]
    return pd.DataFrame(rows, columns=["stage", "kind", "gib"])


def communication_volume(parameters: int, ranks: int) -> pd.DataFrame:
    """Compute the GB that each rank sends per step in fp32, under ddp, zero2 and zero3.

    An all-gather or a reduce-scatter of n bytes sends n (p − 1)/p from each of p ranks; an
    all-reduce is one of each.
    """
    counts = {"ddp": (0, 0, 2), "zero2": (1, 1, 0), "zero3": (2, 1, 0)}
    names = ["all-gather", "reduce-scatter", "all-reduce"]
    table = pd.DataFrame(counts, index=names).T * (4 * parameters * (ranks - 1) / ranks / 1e9)
    return table.assign(total=table.sum(axis=1))


class Gather(torch.autograd.Function):
    """Gather the ranks' shards in forward, and scatter the sum of their gradients in backward."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor) -> torch.Tensor:
        full = shard.new_empty(len(shard) * distributed.get_world_size(), *shard.shape[1:])
        distributed.all_gather_into_tensor(full, shard)
        return full

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        ranks = distributed.get_world_size()
        shard = gradient.new_empty(len(gradient) // ranks, *gradient.shape[1:])
        distributed.reduce_scatter_tensor(shard, gradient.contiguous())  # the sum over the ranks
        return shard / ranks


class ShardedLinear(nn.Module):
    """A linear layer; each rank keeps some rows of its weight."""

    def __init__(self, full: nn.Linear, rank: int, ranks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(full.weight.detach().chunk(ranks)[rank].clone())
        self.bias = nn.Parameter(full.bias.detach().chunk(ranks)[rank].clone())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(images, Gather.apply(self.weight), Gather.apply(self.bias))


def handmade_source() -> str:
    """Return the source of the sharded layer."""
    return "\n\n".join(map(inspect.getsource, (Gather, ShardedLinear)))


def train_handmade() -> pd.DataFrame:
    """Train a full layer on all images, and a sharded one on two ranks with half of them each.

    Columns: step, full and sharded (losses over all images), difference (relative). `attrs` has
    the bytes of weights, gradients and optimizer: "full", and "shard" of one rank.
    """
    layer, data = _layer_and_data()
    full, full_bytes = _train(layer, *data)
    results = on_ranks(_train_shard, 2)
    losses = torch.tensor([losses for losses, _ in results]).mean(dim=0).tolist()
    table = pd.DataFrame({"step": range(STEPS), "full": full, "sharded": losses})
    table["difference"] = (table["sharded"] / table["full"] - 1).abs()
    table.attrs |= {"full": full_bytes, "shard": results[0][1]}
    return table


def _layer_and_data() -> tuple[nn.Linear, list[torch.Tensor]]:
    """Return the same layer, images and targets in each process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(SIZE, SIZE), [torch.randn(IMAGES, SIZE) for _ in range(2)]


def _train_shard(rank: int, ranks: int) -> tuple[list[float], int]:
    layer, data = _layer_and_data()
    return _train(ShardedLinear(layer, rank, ranks), *(part.chunk(ranks)[rank] for part in data))


def _train(
    layer: nn.Module, images: torch.Tensor, targets: torch.Tensor
) -> tuple[list[float], int]:
    """Return each step's loss, and the bytes of weights, gradients and AdamW's state."""
    optimizer, losses = torch.optim.AdamW(layer.parameters(), lr=0.01), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(layer(images), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    means = [mean for state in optimizer.state.values() for mean in state.values() if mean.ndim]
    weights = [*layer.parameters()]
    return losses, sum(t.nbytes for t in [*weights, *(w.grad for w in weights), *means])
