"""Measure what memory strategies cost, and how they change gradients and statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course import Run
from course.lab import NOT_APPLICABLE
from course.training import memory_prediction


def memory_strategies(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row for each run, the fastest first.

    Columns: strategy, batch_size (images per update), micro_batch (images per pass through the
    network), limit_gib (the run's memory limit; 0: none), status, images_per_s, peak_gib, kept_gib
    (what a pass keeps for backward; unknown if checkpointing selects by operator),
    joules_per_image, pass_s, error. What a run did not measure is NaN.
    """
    rows = []
    for run in runs:
        cfg, record = run.config, run.record
        micro_batch = cfg.micro_batch or cfg.batch_size
        measured = record.status == "ok"
        kept_gib = record.evidence.kept_gib
        is_kept_known = kept_gib is not NOT_APPLICABLE and cfg.checkpointing != "selective"
        row = {
            "strategy": memory_prediction.memory_strategy(cfg),
            "batch_size": cfg.batch_size,
            "micro_batch": micro_batch,
            "limit_gib": cfg.memory_gib,
            "status": record.status,
            "images_per_s": record.images_per_s if measured else math.nan,
            "peak_gib": record.peak_gib if measured else math.nan,
            "kept_gib": kept_gib if is_kept_known else math.nan,
            "joules_per_image": record.joules_per_image,
            "pass_s": math.nan,
            "error": record.error,
        }
        if record.step_s:
            row["pass_s"] = record.step_s / math.ceil(cfg.batch_size / micro_batch)
        rows.append(row)
    return pd.DataFrame(rows).sort_values("images_per_s", ascending=False, ignore_index=True)


def on_pareto_front(table: pd.DataFrame) -> pd.Series:
    """Mark the rows of `memory_strategies` that no other row beats in both speed and memory."""

    def is_unbeaten(row: pd.Series) -> bool:
        faster = table["images_per_s"] >= row["images_per_s"]
        return (faster & (table["peak_gib"] <= row["peak_gib"])).sum() == 1  # the row itself

    return table.apply(is_unbeaten, axis=1)


def _batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, 16, 16, generator=generator)
    images *= torch.linspace(0.5, 2, count)[:, None, None, None]  # micro-batches differ
    return images, torch.randint(4, (count,), generator=generator)


def _gradient(norm: nn.Module, sizes: Sequence[int], weights: Sequence[float]) -> torch.Tensor:
    """Return all gradients of a batch in micro-batches whose losses have these weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        convolution, linear = nn.Conv2d(3, 16, 3), nn.Linear(16, 4)
    pool = nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(convolution, norm, nn.ReLU(), pool, nn.Flatten(), linear)
    model.zero_grad()
    images, labels = _batch(sum(sizes))
    for weight, x, y in zip(weights, images.split([*sizes]), labels.split([*sizes])):
        (weight * nn.functional.cross_entropy(model(x), y)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def gradient_errors(sizes: Sequence[int]) -> pd.DataFrame:
    """Compare the gradients of micro-batches with those of the full batch.

    Columns: norm, weighted and mean_of_means: the relative error if each loss is weighted by its
    share of the images, and if all losses count equally. LayerNorm normalises each image.

    Args:
        sizes: images of each micro-batch.
    """
    count = sum(sizes)
    weights = {
        "weighted": [size / count for size in sizes],
        "mean_of_means": [1 / len(sizes)] * len(sizes),
    }
    rows = []
    for name, norm in (("LayerNorm", nn.GroupNorm(1, 16)), ("BatchNorm", nn.BatchNorm2d(16))):
        full = _gradient(norm, [count], [1.0])
        row: dict[str, str | float] = {"norm": name}
        for column, shares in weights.items():
            row[column] = float((_gradient(norm, sizes, shares) - full).norm() / full.norm())
        rows.append(row)
    return pd.DataFrame(rows)


def compare_recomputation() -> pd.DataFrame:
    """Compare a step that keeps its activations with two that recompute them in backward.

    Rows: BatchNorm's running mean after the step, and the norm of a gradient that passes through
    dropout, whose second mask must equal the first. Columns: kept; recomputed; and "random state
    not restored": the second pass draws new random numbers (preserve_rng_state=False).
    """
    images, _ = _batch(8)
    settings = {"kept": None, "recomputed": True, "random state not restored": False}
    columns = {}
    for column, keep_random in settings.items():
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(4)
        block = nn.Sequential(norm, nn.Dropout(0.5))
        weight = torch.ones(4, requires_grad=True)
        x = images.flatten(1)[:, :4] * weight + 1

        def forward(x: torch.Tensor, block: nn.Module = block) -> torch.Tensor:
            return block(x).exp()

        if keep_random is None:
            out = forward(x)
        else:
            out = checkpoint(forward, x, use_reentrant=False, preserve_rng_state=keep_random)
        out.sum().backward()
        columns[column] = {
            "BatchNorm's running mean": float(norm.running_mean.mean()),
            "gradient through dropout": float(weight.grad.norm()),
        }
    return pd.DataFrame(columns)
