"""Fit a link to the all-reduces of traces, in which messages also wait for late ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from course.runs.run import Run
from labs.scaling.efficiency import single_gpu_run
from labs.scaling.model import Link, all_reduce_s, config_buckets, exposed_s

ALPHAS, BETAS = (1e-7, 1e-2), (1e8, 1e13)  # seconds, bytes/s: limits of a fit
GRID = 61  # values of α and of β that are tried at once
WIDE = 0.3  # decades to each side of the best link that contain the intervals
FASTEST = 0.1  # the share of messages below the fitted line


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
