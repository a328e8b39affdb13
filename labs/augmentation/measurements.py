"""Measure what augmentation costs, and return recorded accuracies with and without mixing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torchvision.transforms import v2

from course import rung
from course.data import augment, default_set, open_image, train_view
from course.training import operator_calls
from trainspeed import timing

MIXING = Path(__file__).with_name("mixing.jsonl")


def operation_costs(images: torch.Tensor) -> pd.DataFrame:
    """Time each operation of RandAugment on one core, image by image.

    Args:
        images: bytes of shape (N, 3, H, W).

    Returns:
        One row per operation: operation, ms (mean of the images), in the order of `OPERATIONS`.
    """
    rows = []
    for name, operation in augment.OPERATIONS.items():
        times = timing.time_stages(
            lambda: images, [lambda image, run=operation: run(image, augment.STRENGTH)]
        )
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
    times = timing.time_stages(lambda: chosen, stages).mean(axis=0)
    return pd.Series({"load": times[1], "RandAugment": times[2]})


def count_operators(function: Callable[[], Any]) -> int:
    """Count the operators of PyTorch that a function calls, without views."""
    return int(operator_calls(function, lambda tensors: "any")["calls"].sum())


def mixing_results() -> pd.DataFrame:
    """Return the training runs with and without mixing that research/mixing.py recorded.

    Returns:
        One row per way and seed: way ("none" or for example "mixup, α = 0.2"), seed, last_loss (of
        the last batch, mixed); train_loss, train_top1, val_loss, val_top1 (of unmixed images);
        machine, date, and the settings.
    """
    table = pd.read_json(MIXING, lines=True, convert_dates=False).drop(columns="plan")
    names = [
        f"{row.mix}, α = {row.alpha:g}" if row.alpha else row.mix for row in table.itertuples()
    ]
    return table.assign(way=names)
