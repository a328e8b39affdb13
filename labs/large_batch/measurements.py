"""Measure what training learns at several batch sizes, and the sizes of updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn

from course import Config, Run
from course.data import crop_set, normalised
from course.training import models, optimizers

SMOOTHING = 0.9  # weight of the earlier losses in a search
DIVERGED = 4.0  # a search ends where the loss exceeds its minimum by this factor

Batch = tuple[torch.Tensor, torch.Tensor]  # images (N, 3, H, W), normalised, and labels (N,)


def epochs_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row for each epoch of each run.

    Columns: run, optimizer, batch_size, lr, seed, epoch (from 1), updates (so far), val_top1,
    val_loss, machine.
    """
    rows = []
    for run in runs:
        cfg, record = run.config, run.record
        for number, epoch in enumerate(record.epochs, 1):
            row = {"run": cfg.rung, "optimizer": cfg.optimizer, "batch_size": cfg.batch_size}
            row |= {"lr": cfg.lr, "seed": cfg.seed, "epoch": number, "updates": number * cfg.steps}
            row |= {"val_top1": epoch["val_top1"], "val_loss": epoch["val_loss"]}
            rows.append(row | {"machine": record.machine})
    return pd.DataFrame(rows)


def final_epochs(runs: Iterable[Run]) -> pd.DataFrame:
    """Return the last epoch of each run, with the columns of `epochs_table`."""
    return epochs_table(runs).groupby("run", sort=False).tail(1).reset_index(drop=True)


def best_rates(table: pd.DataFrame) -> pd.DataFrame:
    """Select the most accurate row of each batch size from a table of `final_epochs`."""
    return table.loc[table.groupby("batch_size")["val_top1"].idxmax()]


@dataclass(frozen=True)
class RateSearch:
    """A learning rate search: a table of lr, loss and smoothed, until the loss diverges."""

    table: pd.DataFrame

    @property
    def lowest(self) -> float:
        """The learning rate with the smallest loss. It is already too high for a training."""
        return float(self.table.loc[self.table["smoothed"].idxmin(), "lr"])


def read_rate_search(run: Run) -> RateSearch:
    """Read the measurements of a run with schedule="find".

    The losses are smoothed over earlier ones, because each is of a different batch (Smith 2017,
    arXiv:1506.01186).

    Raises:
        ValueError: the run is no search, or has no step yet.
    """
    if run.config.schedule != "find":
        raise ValueError(f'{run}: schedule={run.config.schedule!r}, expected schedule="find"')
    steps = run.steps.dropna(subset=["lr"]) if len(run.steps) else run.steps
    if steps.empty:
        raise ValueError(f"{run} has no step yet. Call run.wait() first.")
    table = steps[["lr", "loss"]].reset_index(drop=True)
    table["smoothed"] = table["loss"].ewm(alpha=1 - SMOOTHING).mean()
    finite = table["loss"].notna().cummin()
    stays = (table["smoothed"] <= DIVERGED * table["smoothed"].cummin()).cummin()
    return RateSearch(table[finite & stays])


@dataclass(frozen=True)
class CriticalBatch:
    """Updates until a loss is reached, by batch size, and the law that fits them.

    table: batch_size, updates, lr (the fastest). least: updates with infinitely large batches.
    size: images per batch at which twice as many updates are needed.
    """

    table: pd.DataFrame
    least: float
    size: float


def fit_critical_batch(runs: Iterable[Run], loss: float) -> CriticalBatch:
    """Fit how many updates each batch size needs until the training loss is `loss`.

    The law is updates = least × (1 + size / batch), fitted by least squares of relative errors
    (McCandlish et al. 2018, arXiv:1812.06162, equation 2.11). The loss is the mean of three steps.

    Raises:
        ValueError: fewer than three batch sizes reach the loss.
    """
    rows = []
    for run in runs:
        low = run.steps["loss"].rolling(3, min_periods=1).mean() <= loss
        if low.any():
            updates = int(run.steps.loc[low.idxmax(), "step"]) + 1
            rows.append((run.config.batch_size, updates, run.config.lr))
    table = pd.DataFrame(rows, columns=["batch_size", "updates", "lr"])
    table = table.sort_values([*table]).groupby("batch_size", as_index=False).first()
    if len(table) < 3:
        raise ValueError(
            f"loss={loss:g}: {len(table)} batch sizes reach it, and the fit needs 3. "
            "Try a higher loss."
        )
    weights = 1 / table["updates"].to_numpy()
    design = np.column_stack([np.ones(len(table)), 1 / table["batch_size"]])
    (least, slope), *_ = np.linalg.lstsq(design * weights[:, None], np.ones(len(table)))
    return CriticalBatch(table, float(least), float(slope / least))


def relative_update_sizes(
    model: nn.Module, batch: Batch, configs: Sequence[Config]
) -> pd.DataFrame:
    """Measure how far each optimizer's first update moves each layer, without changing the model.

    Columns: optimizer, layer (from 1), ratio (norm of the update over norm of the weights). Only
    filters and matrices have a row.

    Args:
        configs: each names an optimizer and its settings.
    """
    images, labels = batch
    loss = nn.functional.cross_entropy(model(images), labels)
    weights = [*model.parameters()]
    gradients = torch.autograd.grad(loss, weights)
    rows = []
    for cfg in configs:
        copies = [nn.Parameter(weight.detach().clone()) for weight in weights]
        for copy, gradient in zip(copies, gradients):
            copy.grad = gradient.clone()
        optimizers.create(copies, cfg).step()
        matrices = [(old, new) for old, new in zip(weights, copies) if old.ndim > 1]
        for layer, (old, new) in enumerate(matrices, 1):
            ratio = ((new - old).norm() / old.norm()).item()
            rows.append({"optimizer": cfg.optimizer, "layer": layer, "ratio": ratio})
    return pd.DataFrame(rows)


def load_network(run: Run) -> nn.Module:
    """Load the trained network of a run on the CPU, in training mode.

    Raises:
        ValueError: the run has not saved its weights.
    """
    path = run.folder / "weights.pt"
    if not path.exists():
        raise ValueError(
            f"{run} has no weights.pt. Launch it with save_weights=True, and wait for its end."
        )
    weights = torch.load(path, map_location="cpu", weights_only=True)
    model = models.create(run.config.model, len(weights["fc.bias"]))
    model.load_state_dict(weights)
    return model


def crop_batches(count: int, size: int) -> list[Batch]:
    """Return random batches of training crops: images (size, 3, 32, 32), normalised, and labels."""
    crops = crop_set.Crops(crop_set.ensure(), "train")
    order = torch.randperm(len(crops), generator=torch.Generator().manual_seed(0))
    return [
        (normalised(crops.images[indices]), crops.labels[indices])
        for indices in order[: count * size].view(count, size)
    ]
