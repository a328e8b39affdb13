"""What trainings at many batch sizes learned, and what a search for a learning rate shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from course.config import GIB, Config, rung
from course.data import crop_set
from course.data.crop_set import Crops
from course.data.loader import normalised
from course.runs.run import Run
from course.training import models, optimizers
from course.training.memory_prediction import fake_step

SMOOTH = 0.9  # of the losses before, in a search
TOO_HIGH = 4.0  # times the smallest loss: from there on nothing is looked at


def learned(runs: Iterable[Run]) -> pd.DataFrame:
    """How each training went, epoch by epoch.

    One row an epoch of a run: run, optimizer, batch_size, lr, seed, epoch (from 1), updates (so
    far), val_top1, val_loss, machine. A network whose loss is no number any more is right as often
    as one that guesses.
    """
    rows = []
    for run in runs:
        about = {key: getattr(run.config, key) for key in ("optimizer", "batch_size", "lr", "seed")}
        for number, told in enumerate(run.record.epochs, 1):
            row = {"run": run.config.rung, **about, "epoch": number}
            row |= {"updates": number * run.config.steps}
            row |= {name: told[name] for name in ("val_top1", "val_loss")}
            rows.append(row | {"machine": run.record.machine})
    return pd.DataFrame(rows)


def ends(runs: Iterable[Run]) -> pd.DataFrame:
    """The last epoch of each run, as in `learned`."""
    return learned(runs).groupby("run", sort=False).tail(1).reset_index(drop=True)


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Of each batch size the learning rate that ended best: batch_size, updates, lr, val_top1."""
    rows = table.loc[table.groupby("batch_size")["val_top1"].idxmax()]
    return rows[["batch_size", "updates", "lr", "val_top1"]].reset_index(drop=True)


def along(table: pd.DataFrame, power: float) -> pd.DataFrame:
    """What a rule for the learning rate brings, from the best one of the smallest batch on.

    Of each batch size the training whose rate is nearest to the rule's: batch_size, lr, val_top1.

    Args:
        table: what `ends` returns.
        power: of the batch size, to which the rate is proportional: 1 is linear scaling.
    """
    first = best(table).iloc[0]
    due = first["lr"] * (table["batch_size"] / first["batch_size"]) ** power
    away = np.log(table["lr"] / due).abs()
    rows = table.loc[away.groupby(table["batch_size"]).idxmin()]
    return rows[["batch_size", "lr", "val_top1"]].reset_index(drop=True)


@dataclass(frozen=True)
class Search:
    """A search for a learning rate.

    table: lr, loss, smoothed; from the first update to where the loss has left all bounds.
    """

    table: pd.DataFrame

    @property
    def lowest(self) -> float:
        """The learning rate at which the loss was smallest: already too high, see `steepest`."""
        return float(self.table.loc[self.table["smoothed"].idxmin(), "lr"])

    @property
    def steepest(self) -> float:
        """The learning rate at which the loss fell fastest, over factors of the rate."""
        falls = self.table[self.table["lr"] <= self.lowest]
        if len(falls) < 3:
            return self.lowest
        slope = pd.Series(np.gradient(falls["smoothed"], np.log(falls["lr"])))
        over = slope.rolling(max(3, len(slope) // 8), center=True).mean()
        return float(falls["lr"].iloc[int(over.argmin())])


def search(run: Run) -> Search:
    """What a run with schedule="find" shows.

    Losses are averaged with those before them, since each is of another batch (as Smith 2017,
    arXiv:1506.01186, has it).

    Raises:
        ValueError: the run searched nothing, or has no step yet.
    """
    if run.config.schedule != "find":
        raise ValueError(f'{run} has schedule={run.config.schedule!r}: a search has "find"')
    steps = run.steps.dropna(subset=["lr"]) if len(run.steps) else run.steps
    if steps.empty:
        raise ValueError(f"{run} has no step yet: wait(run)")
    rows, mean, least = [], 0.0, math.inf
    for number, (lr, loss) in enumerate(zip(steps["lr"], steps["loss"]), 1):
        mean = SMOOTH * mean + (1 - SMOOTH) * loss
        smoothed = mean / (1 - SMOOTH**number)
        least = min(least, smoothed)
        if not smoothed <= TOO_HIGH * least:  # which no number is not, either
            break
        rows.append({"lr": lr, "loss": loss, "smoothed": smoothed})
    return Search(pd.DataFrame(rows, columns=["lr", "loss", "smoothed"]))


@dataclass(frozen=True)
class Critical:
    """Updates until a loss is reached, by batch size, and the law that fits them.

    table: batch_size, updates, lr (of all rates the fastest). least: updates with endless batches.
    size: images in a batch at which twice as many are needed; there little more is gained.
    """

    table: pd.DataFrame
    least: float
    size: float


def critical(runs: Iterable[Run], loss: float) -> Critical:
    """How many updates each batch size takes until the training loss is as low as `loss`.

    The law is updates = least × (1 + size / batch), by least squares of relative errors
    (McCandlish et al. 2018, arXiv:1812.06162, equation 2.11). Of three losses in a row the mean
    counts.

    Raises:
        ValueError: fewer than three batch sizes reach it.
    """
    reached: dict[int, tuple[int, float]] = {}
    for run in runs:
        steps, size = run.steps, run.config.batch_size
        hits = steps.loc[steps["loss"].rolling(3, min_periods=1).mean() <= loss, "step"]
        if len(hits):
            mine = (int(hits.iloc[0]) + 1, run.config.lr)
            reached[size] = min(reached.get(size, mine), mine)
    if len(reached) < 3:
        raise ValueError(f"{len(reached)} batch sizes reach the loss {loss:g}: three are needed")
    table = pd.DataFrame(
        [(size, *reached[size]) for size in sorted(reached)],
        columns=["batch_size", "updates", "lr"],
    )
    design = np.column_stack([np.ones(len(table)), 1 / table["batch_size"]])
    weights = 1 / table["updates"].to_numpy()
    (least, slope), *_ = np.linalg.lstsq(design * weights[:, None], np.ones(len(table)))
    return Critical(table, float(least), float(slope / least))


def update_sizes(
    model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], configs: Sequence[Config]
) -> pd.DataFrame:
    """How far an optimizer's first update moves each layer: its size over the layer's own.

    Columns: optimizer, layer (its number, from the images on), name, ratio. Only filters and
    matrices are shown. No weight of the model is changed.

    Args:
        batch: images (N, 3, H, W), normalised, and labels.
        configs: each names an optimizer, and its settings.
    """
    images, labels = batch
    nn.functional.cross_entropy(model(images), labels).backward()
    rows = []
    for cfg in configs:
        twins = [nn.Parameter(each.detach().clone()) for each in model.parameters()]
        for twin, each in zip(twins, model.parameters()):
            twin.grad = None if each.grad is None else each.grad.clone()
        optimizers.create(twins, cfg).step()
        named = zip(model.named_parameters(), twins)
        shown = [(name, each, twin) for (name, each), twin in named if each.ndim > 1]
        for layer, (name, each, twin) in enumerate(shown, 1):
            moved = (twin - each).norm() / each.norm()
            row = {"optimizer": cfg.optimizer, "layer": layer, "name": name}
            rows.append(row | {"ratio": moved.item()})
    model.zero_grad(set_to_none=True)
    return pd.DataFrame(rows)


def rates(cfg: Config) -> list[float]:
    """The learning rate of each update that a config asks for."""
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optimizer = optimizers.create([weight], replace(cfg, optimizer="sgd", fused=False))
    optimizers.schedule(optimizer, cfg)
    found = []
    for _ in range(cfg.epochs * cfg.steps):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
    return found


def network(run: Run) -> nn.Module:
    """The network as a run left it, on the processor, in the mode in which it trains.

    Raises:
        ValueError: the run has written no weights.
    """
    path = run.folder / "weights.pt"
    if not path.exists():
        raise ValueError(f"{run} has no weights.pt: launch it with save_weights=True, and wait")
    weights = torch.load(path, map_location="cpu", weights_only=True)
    model = models.create(run.config.model, len(weights["fc.bias"]))
    model.load_state_dict(weights)
    return model


def batches(count: int, size: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Some batches of training crops: images (size, 3, 32, 32), normalised, and labels."""
    crops = Crops(crop_set.ensure(), "train")
    order = torch.randperm(len(crops), generator=torch.Generator().manual_seed(seed))
    return [
        (normalised(crops.images[chosen]), crops.labels[chosen])
        for chosen in order[: count * size].view(count, size)
    ]


def over_seeds(table: pd.DataFrame, seeds: int = 3) -> pd.DataFrame:
    """Of `ends` the trainings with another optimizer, or SGD, that were made with so many seeds."""
    plain = table["run"].str.split("-").str[0] == table["optimizer"]  # nothing else is shown there
    rows = table[plain]
    made = rows.groupby(["optimizer", "batch_size", "lr"])["seed"].transform("nunique")
    return rows[made >= seeds].reset_index(drop=True)


def state_gib(optimizer: str, model: str) -> float:
    """What an optimizer keeps beside a network's weights, in GiB: told by a step that is pretended.

    Raises:
        ValueError: no such optimizer or model; the message lists them.
    """
    with fake_step(rung("device", optimizer=optimizer, model=model, batch_size=1)) as step:
        step.update_once()
        kept = tree_leaves(list(step.optimizer.state.values()))
    return sum(each.nbytes for each in kept if isinstance(each, torch.Tensor)) / GIB
