"""What DDP sends, and how long a ring of ranks takes to add it up.

Gradients travel in buckets, each by an all-reduce, while backward computes the next ones; what is
still under way when backward ends makes the step longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

MIB = 1024**2  # DDP's megabyte


@dataclass(frozen=True)
class Link:
    """What ranks are joined by: seconds before a message arrives, and bytes a second after that."""

    alpha_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Bucket:
    """Gradients that DDP sends together; `ready` is the share of backward done when they exist."""

    size: int  # bytes
    ready: float


def all_reduce_s(size: float, ranks: int, link: Link, rows: int = 1) -> float:
    """Seconds of an all-reduce of `size` bytes over a ring of ranks.

    2(p − 1) α + 2 (p − 1)/p · n/β: every rank sends 2(p − 1) messages of n/p bytes, first to add
    up, then to hand round. Of Thakur et al. 2005 (doi:10.1177/1094342005051521), as a ring that
    needs no more than bandwidth allows of Patarasuk and Yuan 2009
    (doi:10.1016/j.jpdc.2008.09.002). Their γ, for adding, is left out: it is hidden in β.

    Args:
        rows: above 1, the ranks stand in a grid of so many rows, and reduce along rows, then
            columns, then rows (the 2D torus of Mikami et al. 2018, arXiv:1811.05233).

    Raises:
        ValueError: ranks that do not fill the rows.
    """
    if ranks % rows:
        raise ValueError(f"{ranks} ranks do not fill {rows} rows: choose a divisor of {ranks}")
    across = ranks // rows
    return _ring_s(size, across, link) + _ring_s(size / across, rows, link)


def _ring_s(size: float, ranks: int, link: Link) -> float:
    return 2 * (ranks - 1) * (link.alpha_s + size / ranks / link.bytes_per_s)


def buckets(model: nn.Module, image_px: int, bucket_mb: float) -> list[Bucket]:
    """The buckets that DDP makes of a model's gradients, in the order in which it sends them.

    A bucket is closed once it holds `bucket_mb` MiB or more, as PyTorch's reducer does. How far
    backward has come by then is told by activations: a layer counts as the numbers that it hands
    on, since a ResNet's time goes to memory traffic more than to arithmetic.
    """
    layers = _layers(model, image_px)
    whole = sum(cost for _, cost in layers)
    found, size, done = [], 0, 0.0
    for parameters, cost in reversed(layers):
        done += cost
        for bytes_ in reversed(parameters):
            size += bytes_
            if size >= bucket_mb * MIB:
                found.append(Bucket(size, done / whole))
                size = 0
    return found + ([Bucket(size, 1.0)] if size else [])


def _layers(model: nn.Module, image_px: int) -> list[tuple[list[int], int]]:
    """For each layer in the order of forward: bytes of each gradient, and numbers handed on."""
    import copy

    import torch

    meta, found = copy.deepcopy(model).to("meta").eval(), []

    def note(layer: nn.Module, _: Any, output: torch.Tensor) -> None:
        own = [p.numel() * p.element_size() for p in layer.parameters() if p.requires_grad]
        found.append((own, output.numel()))

    for layer in meta.modules():
        if not any(layer.children()):
            layer.register_forward_hook(note)
    with torch.no_grad():
        meta(torch.empty(1, 3, image_px, image_px, device="meta"))
    return found


def exposed_s(
    sent: Sequence[Bucket], ranks: int, link: Link, backward_s: float, rows: int = 1
) -> Any:
    """Seconds by which communication outlasts backward; one bucket is under way at a time."""
    *_, last = _spans(sent, ranks, link, backward_s, rows)
    return np.maximum(last[1] - backward_s, 0.0)


def timeline(
    sent: Sequence[Bucket], ranks: int, link: Link, backward_s: float, rows: int = 1
) -> pd.DataFrame:
    """When each bucket is ready, sent and there: size, ready_s, start_s, end_s since backward."""
    import pandas as pd

    spans = _spans(sent, ranks, link, backward_s, rows)
    told = [(each.size, each.ready * backward_s, *span) for each, span in zip(sent, spans)]
    return pd.DataFrame(told, columns=["size", "ready_s", "start_s", "end_s"])


def _spans(
    sent: Sequence[Bucket], ranks: int, link: Link, backward_s: float, rows: int
) -> Iterator[tuple[Any, Any]]:
    free = 0.0
    for bucket in sent:
        begin = np.maximum(free, bucket.ready * backward_s)
        free = begin + all_reduce_s(bucket.size, ranks, link, rows)
        yield begin, free
