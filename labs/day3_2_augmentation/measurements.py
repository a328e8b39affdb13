"""Measure what augmentation costs, and list what networks learn with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torchvision.transforms import v2

from course.analysis.timing import median_ms, time_stages
from course.config import rung
from course.data import default_set
from course.data.augment import OPERATIONS, STRENGTH
from course.data.images import epoch_px, open_image, train_view
from course.runs.run import Run
from course.training.evidence.operator_calls import operator_calls


def operation_costs(images: torch.Tensor) -> pd.DataFrame:
    """Time each operation of RandAugment on one core, image by image.

    Args:
        images: bytes of shape (N, 3, H, W).

    Returns:
        One row per operation: operation, ms (mean of the images), in the order of `OPERATIONS`.
    """
    rows = []
    for name, operation in OPERATIONS.items():
        times = time_stages(lambda: images, [lambda image, run=operation: run(image, STRENGTH)])
        rows.append((name, times[:, 1].mean()))
    return pd.DataFrame(rows, columns=["operation", "ms"])


def work_per_image(images: int = 64, image_px: int = 224) -> pd.Series:
    """Time what one core does for a training image, in milliseconds.

    Returns:
        "load" (read, decode, crop, flip) and "RandAugment" (its two operations).
    """
    files = sorted(default_set.ensure().glob("train/[!.]*/[!.]*.jpg"))
    chosen = [str(files[i]) for i in np.random.default_rng(0).permutation(len(files))[:images]]
    view = train_view(rung("baseline", image_px=image_px))
    stages = (lambda path: view(open_image(path)), v2.RandAugment())
    times = time_stages(lambda: chosen, stages).mean(axis=0)
    return pd.Series({"load": times[1], "RandAugment": times[2]})


def compare_calls(functions: Mapping[str, Callable[[], Any]]) -> pd.DataFrame:
    """Compare functions by name: ms of a call (median), and operators of PyTorch that it calls."""
    rows = [
        {"ms": median_ms(function), "operators": count_operators(function)}
        for function in functions.values()
    ]
    return pd.DataFrame(rows, index=[*functions])


def count_operators(function: Callable[[], Any]) -> int:
    """Count the operators of PyTorch that a function calls, without views."""
    return int(operator_calls(function, lambda tensors: "any")["calls"].sum())


def epoch_table(runs: Iterable[Run]) -> pd.DataFrame:
    """List what each training learned, epoch by epoch.

    Returns:
        One row per epoch of a run: augmentation (the run's label before "-seed-"), seed, epoch
        (from 1), loss (mean of the training steps), val_loss, val_top1, machine.
    """
    rows = []
    for run in runs:
        losses = run.steps.groupby("epoch")["loss"].mean()
        name, seed = run.config.rung.partition("-seed-")[0], run.config.seed
        for epoch, validation in enumerate(run.record.epochs):
            row = {"augmentation": name, "seed": seed, "epoch": epoch + 1, "loss": losses[epoch]}
            row |= {key: validation[key] for key in ("val_loss", "val_top1")}
            rows.append(row | {"machine": run.record.machine})
    return pd.DataFrame(rows)


def epoch_times(run: Run) -> pd.DataFrame:
    """List how long each epoch's steps took: epoch (from 1), image_px, seconds, images_per_s."""
    table = run.steps.groupby("epoch", as_index=False)["step_s"].agg(["sum", "count"])
    return pd.DataFrame(
        {
            "epoch": table["epoch"] + 1,
            "image_px": [epoch_px(run.config, epoch) for epoch in table["epoch"]],
            "seconds": table["sum"],
            "images_per_s": run.config.batch_size * table["count"] / table["sum"],
        }
    )
