"""Ways that trade time for memory: what recorded runs paid, and what recomputing does twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course.analysis.memory import memory_strategy
from course.runs.run import Run


def ways(runs: Iterable[Run]) -> pd.DataFrame:
    """One row a run, the fastest first.

    Columns: way (in words), batch_size (images an update), at_once (images in one pass through
    the network), limit_gib (what the run might take; 0: all there was), status, images_per_s,
    peak_gib, kept_gib (what a pass leaves for backward, of networks that are not compiled; not
    told where checkpointing selects by operator), joules_per_image, pass_s (seconds a pass), error
    (of a run that failed, else ""). What a run did not measure is NaN.
    """
    rows = []
    for run in runs:
        config, record = run.config, run.record
        at_once = config.micro_batch or config.batch_size
        kept = record.evidence.get("kept_gib", np.nan)
        passes = -(-config.batch_size // at_once)
        rows.append(
            {
                "way": memory_strategy(config),
                "batch_size": config.batch_size,
                "at_once": at_once,
                "limit_gib": config.memory_gib,
                "status": record.status,
                "images_per_s": record.images_per_s if record.status == "ok" else np.nan,
                "peak_gib": record.peak_gib if record.status == "ok" else np.nan,
                "kept_gib": np.nan if config.checkpointing == "selective" else kept,
                "joules_per_image": record.joules_per_image,
                "pass_s": record.step_s / passes if record.step_s else np.nan,
                "error": record.error,
            }
        )
    return pd.DataFrame(rows).sort_values("images_per_s", ascending=False, ignore_index=True)


def is_best(table: pd.DataFrame) -> pd.Series:
    """Of each row: is none other both faster and smaller? These are the Pareto front."""
    ok = table[table["status"] == "ok"]

    def beaten(row: pd.Series) -> bool:
        as_fast = ok["images_per_s"] >= row["images_per_s"]
        as_small = ok["peak_gib"] <= row["peak_gib"]
        return bool((as_fast & as_small).sum() > 1)  # it is one of them itself

    return table.apply(lambda row: row["status"] == "ok" and not beaten(row), axis=1)


def _network(norm: str) -> nn.Sequential:
    """A small network with the same weights each time; LayerNorm is one over all of an image."""
    normalises = {"LayerNorm": nn.GroupNorm(1, 16), "BatchNorm": nn.BatchNorm2d(16)}[norm]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 16, 3),
            normalises,
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 4),
        )


def _batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, 16, 16, generator=made)
    images *= torch.linspace(0.5, 2, count)[:, None, None, None]  # no two micro-batches are alike
    return images, torch.randint(4, (count,), generator=made)


def _gradient(norm: str, sizes: Sequence[int], weights: Sequence[float]) -> torch.Tensor:
    """All gradients in a row, of a batch in micro-batches whose losses count by these weights."""
    model, (images, labels) = _network(norm), _batch(sum(sizes))
    for weight, x, y in zip(weights, images.split([*sizes]), labels.split([*sizes])):
        (weight * nn.functional.cross_entropy(model(x), y)).backward()
    return torch.cat([each.grad.flatten() for each in model.parameters()])


def gradients_apart(sizes: Sequence[int]) -> pd.DataFrame:
    """How far gradients of micro-batches lie from those of the whole batch, relative to these.

    Columns: norm ("LayerNorm", over an image's own numbers, or "BatchNorm"), weighed (each loss
    counts by its share of the images), mean_of_means (all count alike).

    Args:
        sizes: images of each micro-batch.
    """
    count = sum(sizes)
    ways = {
        "weighed": [size / count for size in sizes],
        "mean_of_means": [1 / len(sizes)] * len(sizes),
    }
    rows = []
    for norm in ("LayerNorm", "BatchNorm"):
        whole = _gradient(norm, [count], [1.0])
        apart = {name: _gradient(norm, sizes, each) - whole for name, each in ways.items()}
        rows.append({"norm": norm} | {n: float(d.norm() / whole.norm()) for n, d in apart.items()})
    return pd.DataFrame(rows)


def done_twice(*, keep_random: bool = True) -> pd.DataFrame:
    """What one step leaves behind, whole and with its inside computed again in backward.

    Columns: what, whole, again. Rows: BatchNorm's running mean after the step; the gradient behind
    dropout, whose mask a second pass must draw as the first did.

    Args:
        keep_random: PyTorch's default: the second pass starts from the random state of the first.
    """
    images, _ = _batch(8)
    rows: dict[str, dict[str, float]] = {"running mean": {}, "gradient behind dropout": {}}
    for name in ("whole", "again"):
        torch.manual_seed(0)
        norm, dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)
        weight = torch.ones(4, requires_grad=True)
        block = nn.Sequential(norm, dropout)

        def inside(x: torch.Tensor, block: nn.Module = block) -> torch.Tensor:
            return block(x).exp()

        x = images.flatten(1)[:, :4] * weight + 1
        how = {"use_reentrant": False, "preserve_rng_state": keep_random}
        out = inside(x) if name == "whole" else checkpoint(inside, x, **how)
        out.sum().backward()
        rows["running mean"][name] = float(norm.running_mean.mean())
        rows["gradient behind dropout"][name] = float(weight.grad.norm())
    found = pd.DataFrame.from_dict(rows, orient="index")
    return found.rename_axis("what").reset_index()
