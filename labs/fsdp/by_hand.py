"""A linear layer, sharded by hand: its weight is gathered, used and freed, in both passes."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import cloudpickle
import pandas as pd
import torch
from torch import distributed, nn

from course.analysis import on_ranks
from labs.saving_memory.timeline import MemoryTimeline

RANKS = 3
WIDTHS = (240, 288) * 3 + (240,)  # of the network's features: no weight is a square
LAYERS, IMAGES = len(WIDTHS) - 1, 4  # images per rank
FULL_BYTES = 4 * WIDTHS[0] * WIDTHS[1]  # of a layer's weight
KINDS = {  # of in-place and of functional collectives
    "all-gather": "all_?gather",
    "reduce-scatter": "reduce_scatter",
    "all-reduce": "all_?reduce",
}
Layer = Callable[[], tuple[Callable, Callable]]  # returns its forward and its backward


def gather(shard):
    """Return the full weight: the rows of all ranks, those of rank 0 first."""
    full = shard.new_empty(len(shard) * distributed.get_world_size(), shard.shape[1])
    distributed.all_gather_into_tensor(full, shard)
    return full


def scatter_mean(gradient):
    """Return this rank's rows of the gradient, averaged over the ranks."""
    ranks = distributed.get_world_size()
    rows = gradient.new_empty(len(gradient) // ranks, gradient.shape[1])
    distributed.reduce_scatter_tensor(rows, gradient)
    return rows / ranks


def forward(ctx, images, shard):
    """Return images @ weight.T; keep what backward needs."""
    ctx.save_for_backward(images, shard)
    return images @ gather(shard).T


def backward(ctx, gradient):
    """Return the gradients of images and of shard."""
    images, shard = ctx.saved_tensors
    return gradient @ gather(shard), scatter_mean(gradient.T @ images)


def sharded_linear():
    """Return the two passes: the solution of the lab's exercise."""
    return forward, backward


def gathered_once():
    """Return passes that keep the gathered weight until backward, as ZeRO-2 does."""

    def keep_full(ctx, images, shard):
        weight = gather(shard)
        ctx.save_for_backward(images, weight)
        return images @ weight.T

    def use_kept(ctx, gradient):
        images, weight = ctx.saved_tensors
        return gradient @ weight, scatter_mean(gradient.T @ images)

    return keep_full, use_kept


def replicated():
    """Return passes with a full weight on each rank, as in DDP."""

    def use_own(ctx, images, weight):
        ctx.save_for_backward(images, weight)
        return images @ weight.T

    def average(ctx, gradient):
        images, weight = ctx.saved_tensors
        mean = gradient.T @ images
        distributed.all_reduce(mean)
        return gradient @ weight, mean.div_(distributed.get_world_size())

    return use_own, average


@dataclass
class Observed:
    """What a step did on one rank."""

    loss: float
    expected_loss: float
    gradients: list[torch.Tensor | None]  # of each layer's rows
    expected: list[torch.Tensor]  # over the images of all ranks
    local: list[torch.Tensor]  # over this rank's images
    points: list[tuple[str, str, int]]  # (phase, operator, bytes in use)


class _RankTimeline(MemoryTimeline):
    """A timeline that lets gloo's thread release a message before the next operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "c10d":
            time.sleep(0.02)
        return result


def observe(function: Layer, *, shards: bool = True) -> list[Observed]:
    """Run one step of a network of such layers on three processes; return each rank's observations.

    Args:
        shards: whether a rank gets its rows of each weight, or all of them.

    Raises:
        RuntimeError: a rank failed.
    """
    return [pickle.loads(observed) for observed in _observe(cloudpickle.dumps(function), shards)]


@cache
def _observe(function: bytes, shards: bool) -> list[bytes]:
    return on_ranks(_step, RANKS, function, shards)


def _step(rank: int, ranks: int, function: bytes, shards: bool) -> bytes:
    torch.manual_seed(0)
    weights = [torch.randn(new, old) / old**0.5 for old, new in pairwise(WIDTHS)]
    batch = torch.randn(ranks * IMAGES, WIDTHS[0])
    own_images = batch[rank * IMAGES :][:IMAGES]
    _, expected = _train(weights, batch, nn.functional.linear)
    expected_loss, local = _train(weights, own_images, nn.functional.linear)
    passes = _check_shapes(*cloudpickle.loads(function)(), ranks if shards else 1)
    apply = type("Layer", (torch.autograd.Function,), passes).apply
    parts = [w.chunk(ranks)[rank].clone() if shards else w for w in weights]
    del weights, batch
    with _RankTimeline() as timeline:
        timeline.track(parts)
        loss, gradients = _train(parts, own_images, apply, timeline)
    rows = [gradient.chunk(ranks)[rank] for gradient in expected] if shards else expected
    local_rows = [gradient.chunk(ranks)[rank] for gradient in local] if shards else local
    return pickle.dumps(Observed(loss, expected_loss, gradients, rows, local_rows, timeline.points))


def _check_shapes(forward: Callable, backward: Callable, parts: int) -> dict[str, staticmethod]:
    """Return the passes of a layer whose weight has so many parts; they check what they return.

    Otherwise the next layer, or autograd, would report a shape, but not the pass that returned it.
    """

    def checked_forward(ctx: Any, images: torch.Tensor, shard: torch.Tensor) -> Any:
        ctx.shapes = (*images.shape,), (*shard.shape,)
        result, expected = forward(ctx, images, shard), (len(images), len(shard) * parts)
        rule = "images @ weight.T, where `gather` returns the rows of all ranks"
        _check_shape(result, expected, "`forward` returns", rule)
        return result

    def checked_backward(ctx: Any, gradient: torch.Tensor) -> Any:
        results = backward(ctx, gradient)
        rules = "`gradient` times the full weight", "this rank's rows of gradient.T @ images"
        if isinstance(results, tuple):
            for name, rule, shape, result in zip(("images", "shard"), rules, ctx.shapes, results):
                if result is not None:
                    what = f"as the gradient of `{name}`, `backward` returns"
                    _check_shape(result, shape, what, rule)
        return results

    return {"forward": staticmethod(checked_forward), "backward": staticmethod(checked_backward)}


def _check_shape(result: Any, expected: tuple[int, int], what: str, rule: str) -> None:
    shape = (*result.shape,) if isinstance(result, torch.Tensor) else type(result).__name__
    assert shape == expected, f"{what} {shape}, expected a tensor of shape {expected}: {rule}"


def _train(
    weights: list[torch.Tensor],
    images: torch.Tensor,
    layer: Callable,
    timeline: MemoryTimeline | None = None,
) -> tuple[float, list[torch.Tensor | None]]:
    """Return the loss, and the gradients of the weights."""
    leaves = [weight.detach().requires_grad_() for weight in weights]
    x = images
    for leaf in leaves:
        x = layer(x, leaf).tanh()
    loss = x.square().mean()
    del x
    if timeline:
        timeline.phase = "backward"
    loss.backward()
    return loss.item(), [leaf.grad for leaf in leaves]


def collectives(observed: Observed) -> pd.DataFrame:
    """Count the collectives of a step: rows are its phases, columns the kinds."""
    table = pd.DataFrame(observed.points, columns=["phase", "operator", "bytes"])
    counts = {
        kind: table["operator"].str.contains(word).groupby(table["phase"], sort=False).sum()
        for kind, word in KINDS.items()
    }
    return pd.DataFrame(counts)


def layer_timelines(function: Layer) -> dict[str, pd.DataFrame]:
    """Return the memory of rank 0 after each operator: DDP, ZeRO-2, and the function as ZeRO-3.

    Columns: phase, operator, kib.
    """
    variants = {
        "DDP": observe(replicated, shards=False),
        "gathered once": observe(gathered_once),
        "gathered twice": observe(function),
    }
    tables = {}
    for name, (first, *_) in variants.items():
        table = pd.DataFrame(first.points, columns=["phase", "operator", "bytes"])
        tables[name] = table.assign(kib=table.pop("bytes") / 2**10)
    return tables
