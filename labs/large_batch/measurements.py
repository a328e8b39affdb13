"""Measure what training learns at several batch sizes, and the sizes of gradients and updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import nn

from course import Config, Run, rung
from course._compat import tensors_in
from course.data import crop_set, normalised
from course.training import memory_prediction, models, optimizers
from trainspeed.memory import update_once

SMOOTHING = 0.9  # weight of the earlier losses in a search
DIVERGED = 4.0  # a search ends where the loss exceeds its minimum by this factor
PARTS = 8  # of a batch whose gradient noise is estimated

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


def select_by_rule(table: pd.DataFrame, power: float) -> pd.DataFrame:
    """Select the row of each batch size whose learning rate is nearest to a scaling rule's.

    The rule starts at the best rate of the smallest batch.

    Args:
        table: from `final_epochs`.
        power: the rate grows with this power of the batch size; 1 is linear scaling.
    """
    start = best_rates(table).iloc[0]
    rates = start["lr"] * (table["batch_size"] / start["batch_size"]) ** power
    distance = np.log(table["lr"] / rates).abs()
    return table.loc[distance.groupby(table["batch_size"]).idxmin()]


def select_repeated(table: pd.DataFrame) -> pd.DataFrame:
    """Select the training runs that compare optimizers, at rates trained with all three seeds.

    Args:
        table: from `final_epochs`.
    """
    rows = table[table["run"].str.split("-").str[0] == table["optimizer"]]
    seeds = rows.groupby(["optimizer", "batch_size", "lr"])["seed"].transform("nunique")
    return rows[seeds >= 3].reset_index(drop=True)


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


@dataclass(frozen=True)
class GradientNoise:
    """The variance of one image's gradient, summed over all weights, and the gradient's square.

    The gradient of B images has the noise `variance` / B. Where it is as large as the gradient, a
    larger batch begins to gain little (McCandlish et al. 2018, arXiv:1812.06162).
    """

    variance: float
    gradient: float

    @property
    def scale(self) -> float:
        """Images per batch whose noise equals the gradient; inf if no gradient was measured."""
        return self.variance / self.gradient if self.gradient > 0 else float("inf")


def estimate_noise(model: nn.Module, batches: Iterable[Batch]) -> GradientNoise:
    """Estimate the gradient noise of a network without changing it.

    Each batch is cut into PARTS, as data parallelism does. The squares of the parts' gradients and
    of their mean give the two unknowns (McCandlish et al. 2018, appendix A.1).

    Args:
        model: in training mode; BatchNorm normalises one part at a time.
        batches: of one size, which PARTS divides.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    squares = [(*_gradient_squares(model, *batch), len(batch[1])) for batch in batches]
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])  # running statistics
    part_square, square, size = np.mean(squares, axis=0)
    part = size / PARTS
    gradient = (size * square - part * part_square) / (size - part)
    variance = (part_square - square) / (1 / part - 1 / size)
    return GradientNoise(float(variance), float(gradient))


def _gradient_squares(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor
) -> tuple[float, float]:
    """Return the mean square of the parts' gradients, and the square of their mean."""
    weights = [*model.parameters()]
    total, part_square = [torch.zeros_like(weight) for weight in weights], 0.0
    for part, part_labels in zip(images.chunk(PARTS), labels.chunk(PARTS)):
        loss = nn.functional.cross_entropy(model(part), part_labels)
        for mean, gradient in zip(total, torch.autograd.grad(loss, weights)):
            part_square += float(gradient.square().sum()) / PARTS
            mean += gradient / PARTS
    return part_square, sum(float(mean.square().sum()) for mean in total)


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


def scheduled_rates(cfg: Config) -> list[float]:
    """Return the learning rate of each update of a config."""
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optimizer = optimizers.create([weight], replace(cfg, optimizer="sgd", fused=False))
    optimizers.schedule(optimizer, cfg)
    rates = []
    for _ in range(cfg.epochs * cfg.steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
    return rates


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


def optimizer_state_gib(optimizer: str, model: str) -> float:
    """Compute the GiB of state that an optimizer keeps for a model, without a GPU."""
    with memory_prediction.fake_step(
        rung("device", optimizer=optimizer, model=model, batch_size=1)
    ) as step:
        update_once(step.optimizer)
        state = tensors_in([*step.optimizer.state.values()])
    return sum(tensor.nbytes for tensor in state) / 2**30
