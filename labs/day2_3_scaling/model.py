"""A model of scaling: what DDP sends, how long a ring needs for it, and what backward hides.

DDP sends gradients in buckets, each by an all-reduce, while backward computes the next ones.
Messages that are still being sent when backward ends make the step longer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from course.runs.run import Run
from course.training import models
from labs.day2_3_scaling.efficiency import single_gpu_run

MIB = 1024**2  # DDP's megabyte
ALPHAS, BETAS = (1e-7, 1e-2), (1e8, 1e13)  # seconds, bytes/s: limits of a fit
GRID = 61  # values of α and of β that are tried at once
WIDE = 0.3  # decades to each side of the best link that contain the intervals
FASTEST = 0.1  # the share of messages below the fitted line


@dataclass(frozen=True)
class Link:
    """A connection between ranks: seconds per message (α), and bytes per second (β)."""

    alpha_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Bucket:
    """Gradients that DDP sends together; `ready` is the share of backward done when they exist."""

    size: int  # bytes
    ready: float


def all_reduce_s(size: float, ranks: int, link: Link, rows: int = 1) -> float:
    """Compute the seconds of an all-reduce of `size` bytes over a ring of ranks.

    2(p − 1) α + 2 (p − 1)/p · n/β: each rank sends 2(p − 1) messages of n/p bytes, first to add up
    the parts, then to distribute the sums (Thakur et al. 2005, doi:10.1177/1094342005051521). No
    algorithm sends fewer bytes (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002). Thakur's
    γ, for adding, is included in β.

    Args:
        rows: above 1, a grid of that many rows, a divisor of `ranks`, reduces along rows, then
            columns, then rows (the 2D torus of Mikami et al. 2018, arXiv:1811.05233).
    """
    columns = ranks // rows
    return _ring_s(size, columns, link) + _ring_s(size / columns, rows, link)


def _ring_s(size: float, ranks: int, link: Link) -> float:
    return 2 * (ranks - 1) * (link.alpha_s + size / ranks / link.bytes_per_s)


def ddp_buckets(model: nn.Module, image_px: int, bucket_mb: float) -> list[Bucket]:
    """Compute the buckets that DDP makes of a model's gradients, in the order of sending.

    A bucket is closed when it contains `bucket_mb` MiB or more, as in PyTorch's reducer. A layer's
    share of backward is estimated by its number of activations, because a ResNet spends more time
    on memory traffic than on arithmetic.
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
def config_buckets(model: str, image_px: int, bucket_mb: float) -> list[Bucket]:
    """Compute the buckets of a model of `course.training.models` for 1,000 classes."""
    with torch.device("meta"):
        return ddp_buckets(models.create(model, 1000), image_px, bucket_mb)


def bucket_timeline(
    buckets: Sequence[Bucket], ranks: int, link: Link, backward_s: float, rows: int = 1
) -> pd.DataFrame:
    """Compute when each bucket is sent; only one bucket is sent at a time.

    Columns: size in bytes; ready_s, start_s, end_s in seconds since backward began.
    """
    spans, free = [], 0.0
    for bucket in buckets:
        ready = bucket.ready * backward_s
        start = max(free, ready)
        free = start + all_reduce_s(bucket.size, ranks, link, rows)
        spans.append((bucket.size, ready, start, free))
    return pd.DataFrame(spans, columns=["size", "ready_s", "start_s", "end_s"])


def exposed_s(
    buckets: Sequence[Bucket], ranks: int, link: Link, backward_s: float, rows: int = 1
) -> float:
    """Compute by how many seconds communication outlasts backward."""
    end_s = bucket_timeline(buckets, ranks, link, backward_s, rows)["end_s"].iloc[-1]
    return max(0.0, float(end_s) - backward_s)


@dataclass(frozen=True)
class LinkFit:
    """A link fitted to messages, and what else a step on several GPUs takes.

    Attributes:
        low, high: the ends of the 95 % intervals of α and β, if the ring's formula holds.
        overhead_s: DDP's own work: the extra time of a step that is not exposed communication.
        table: one row per run: gpus, one_gpu_ms, measured_ms, exposed_ms, model_ms.
    """

    link: Link
    low: Link
    high: Link
    overhead_s: float
    table: pd.DataFrame


def fit_link(runs: Iterable[Run], messages: pd.DataFrame) -> LinkFit:
    """Fit α and β to the durations of messages, and DDP's own work to the durations of steps.

    A message that waits for a late rank takes longer than its link needs, and never shorter. So
    this fits not the mean, but the line that a tenth of the messages stay below.

    Args:
        messages: from `communication.messages`: small ones determine α, large ones β.

    Raises:
        ValueError: no messages, or no run on several GPUs with one on a single GPU to compare.
    """
    runs = list(runs)
    pairs = [(run, single_gpu_run(run, runs)) for run in runs if run.record.gpus > 1]
    pairs = [(run, base) for run, base in pairs if base]
    if not pairs or messages.empty:
        raise ValueError(
            "nothing to fit: expected traced runs on several GPUs, runs on several GPUs without "
            "a trace, and for each of those a run on one GPU with the same images per GPU"
        )
    link, low, high = _fit_alpha_and_beta(messages)
    table = pd.DataFrame([_step_row(run, base, link) for run, base in pairs])
    overhead_ms = (table["measured_ms"] - table["one_gpu_ms"] - table["exposed_ms"]).median()
    table["model_ms"] = table["one_gpu_ms"] + overhead_ms + table["exposed_ms"]
    return LinkFit(link, low, high, float(overhead_ms) / 1e3, table)


def _step_row(run: Run, base: Run, link: Link) -> dict[str, Any]:
    """Return a row of `LinkFit.table` without model_ms."""
    config, gpus = run.config, run.record.gpus
    buckets = config_buckets(config.model, config.image_px, config.bucket_mb)
    return {
        "gpus": gpus,
        "one_gpu_ms": 1e3 * base.record.step_s,
        "measured_ms": 1e3 * run.record.step_s,
        "exposed_ms": 1e3 * exposed_s(buckets, gpus, link, base.record.backward_s),
    }


def _fit_alpha_and_beta(messages: pd.DataFrame) -> tuple[Link, Link, Link]:
    """Search a grid of α and β, evenly spaced in their logarithms, then finer ones around the best.

    Returns:
        The best link, and the ends of the 95 % intervals, from 500 bootstrap samples.
    """
    limits = np.log10([ALPHAS, BETAS])
    centre, reach = limits.mean(axis=1), np.ptp(limits, axis=1) / 2
    for zoom, width in enumerate((reach, [WIDE] * 2, [WIDE / 10] * 2)):
        alphas, betas = (np.logspace(c - w, c + w, GRID) for c, w in zip(centre, width))
        losses = _quantile_losses(messages, Link(*np.meshgrid(alphas, betas, indexing="ij")))
        if zoom == 1:
            uniform = [1 / len(messages)] * len(messages)
            counts = np.random.default_rng(0).multinomial(len(messages), uniform, 500)
            rows, columns = np.unravel_index((counts @ losses).argmin(axis=1), (GRID, GRID))
            samples = alphas[rows], betas[columns]
        row, column = np.unravel_index(losses.sum(axis=0).argmin(), (GRID, GRID))
        centre = np.log10([alphas[row], betas[column]])
    best = 10**centre
    low, high = np.percentile(samples, [2.5, 97.5], axis=1)
    ends = (best, np.minimum(best, low), np.maximum(best, high))
    return tuple(Link(*map(float, values)) for values in ends)


def _quantile_losses(messages: pd.DataFrame, links: Link) -> np.ndarray:
    """Compute each message's loss for each link: being slower costs little, being faster much."""
    errors = np.array(
        [
            np.log(row.duration_s / all_reduce_s(row.bytes, row.ranks, links)).ravel()
            for row in messages.itertuples()
        ]
    )
    return np.where(errors < 0, (FASTEST - 1) * errors, FASTEST * errors)


def predict_scaling(
    base: Run, link: Link, gpus: Sequence[int], *, overhead_s: float = 0.0, rows: int = 1
) -> pd.DataFrame:
    """Predict steps on more GPUs, each with as many images as `base` has on one.

    Columns: gpus, sent_ms (all buckets, hidden or not), exposed_ms, step_ms, efficiency,
    images_per_s.

    Args:
        overhead_s: DDP's own work, as in `fit_link`.
        rows: the grid of `all_reduce_s`; counts that do not fill it are left out.
    """
    config, record = base.config, base.record
    buckets = config_buckets(config.model, config.image_px, 25.0)
    table = pd.DataFrame({"gpus": [count for count in gpus if count % rows == 0]})
    times = [
        (
            sum(all_reduce_s(bucket.size, count, link, rows) for bucket in buckets),
            exposed_s(buckets, count, link, record.backward_s, rows) if count > 1 else 0.0,
            overhead_s if count > 1 else 0.0,
        )
        for count in table["gpus"]
    ]
    messages, exposed, overhead = np.array(times).T
    step_s = record.step_s + exposed + overhead
    return table.assign(
        sent_ms=1e3 * messages,
        exposed_ms=1e3 * exposed,
        step_ms=1e3 * step_s,
        efficiency=record.step_s / step_s,
        images_per_s=table["gpus"] * config.batch_size / step_s,
    )
