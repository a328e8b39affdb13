"""A model of scaling: what DDP sends, how long a ring needs for it, and what backward hides.

DDP sends gradients in buckets, each by an all-reduce, while backward computes the next ones.
Messages that are still being sent when backward ends make the step longer.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import nn

from course.training import models

MIB = 1024**2  # DDP's megabyte


class Link(NamedTuple):
    """A connection between ranks: seconds per message (α), and bytes per second (β)."""

    alpha_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Bucket:
    """Gradients that DDP sends together; `ready` is the share of backward done when they exist."""

    size: int  # bytes
    ready: float


def all_reduce_s(size: float, ranks: int, link: Link) -> float:
    """Compute the seconds of an all-reduce of `size` bytes over a ring of ranks.

    2(p − 1) α + 2 (p − 1)/p · n/β: each rank sends 2(p − 1) messages of n/p bytes, first to add up
    the parts, then to distribute the sums (Thakur et al. 2005, doi:10.1177/1094342005051521). No
    algorithm sends fewer bytes (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002). Thakur's
    γ, for adding, is included in β.
    """
    return 2 * (ranks - 1) * (link.alpha_s + size / ranks / link.bytes_per_s)


def fit_link(table: pd.DataFrame) -> Link:
    """Take α from the smallest all-reduce of a measured link, which has few bytes, β from the rest.

    Args:
        table: from `measure_link` or `recorded_links`.
    """
    ranks, size = table["ranks"].iloc[0], table["bytes"].max()
    alpha_s = table["seconds"].iloc[0] / (2 * (ranks - 1))
    left_s = table["seconds"].iloc[-1] - table["seconds"].iloc[0]
    return Link(alpha_s, 2 * (ranks - 1) / ranks * size / left_s)


def ddp_buckets(model: nn.Module, image_px: int, bucket_mb: float) -> list[Bucket]:
    """Compute the buckets that DDP makes of a model's gradients, in the order of sending.

    A bucket is closed when it contains `bucket_mb` MiB or more, as in PyTorch's reducer. A layer's
    share of backward is estimated by its number of activations, because a ResNet spends more time
    on memory traffic than on compute.
    """
    layers = _layers(model, image_px)
    total = sum(cost for _, cost in layers)
    buckets, size, finished_cost = [], 0, 0
    for parameters, cost in reversed(layers):
        finished_cost += cost
        for bytes_ in reversed(parameters):
            size += bytes_
            if size >= bucket_mb * MIB:
                buckets.append(Bucket(size, finished_cost / total))
                size = 0
    return buckets + ([Bucket(size, 1.0)] if size else [])


def _layers(model: nn.Module, image_px: int) -> list[tuple[list[int], int]]:
    """Return bytes of each gradient and number of activations, layer by layer as in forward."""
    meta, layers = copy.deepcopy(model).to("meta").eval(), []

    def note(layer: nn.Module, _: Any, output: torch.Tensor) -> None:
        trained = [p for p in layer.parameters() if p.requires_grad]
        layers.append(([p.nbytes for p in trained], output.numel()))

    for layer in meta.modules():
        if not any(layer.children()):
            layer.register_forward_hook(note)
    with torch.no_grad():
        meta(torch.empty(1, 3, image_px, image_px, device="meta"))
    return layers


@lru_cache(maxsize=32)
def config_buckets(
    model: str = "resnet50", image_px: int = 224, bucket_mb: float = 25.0
) -> list[Bucket]:
    """Compute the buckets of a model of `course.training.models` for 1,000 classes."""
    with torch.device("meta"):
        return ddp_buckets(models.create(model, 1000), image_px, bucket_mb)


def bucket_timeline(
    buckets: Sequence[Bucket], ranks: int, link: Link, backward_s: float
) -> pd.DataFrame:
    """Compute when each bucket is sent; only one bucket is sent at a time.

    Columns: size in bytes; ready_s, start_s, end_s in seconds since backward began.
    """
    spans, free = [], 0.0
    for bucket in buckets:
        ready = bucket.ready * backward_s
        start = max(free, ready)
        free = start + all_reduce_s(bucket.size, ranks, link)
        spans.append((bucket.size, ready, start, free))
    return pd.DataFrame(spans, columns=["size", "ready_s", "start_s", "end_s"])


def exposed_s(buckets: Sequence[Bucket], ranks: int, link: Link, backward_s: float) -> float:
    """Compute by how many seconds communication outlasts backward."""
    end_s = bucket_timeline(buckets, ranks, link, backward_s)["end_s"].iloc[-1]
    return max(0.0, float(end_s) - backward_s)
