"""Figures of augmentation: changed and mixed images, and sizes of crops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from course import Run
from course.charts import BLUE, GREY, Picture, bars, describe, label, legend
from course.data import epoch_px
from course.lab import digits
from labs.augmentation.images import Batch, apply_operations
from labs.augmentation.measurements import operation_costs

COLUMNS = 7


def plot_operations(batch: torch.Tensor) -> Picture:
    """Draw an image after each operation of RandAugment, with the operation's time on a core.

    Args:
        batch: bytes of shape (N, 3, H, W); the first image is drawn, and the first four are timed.
    """
    images = apply_operations(batch[0])
    ms = operation_costs(batch[:4]).set_index("operation")["ms"]
    rows, words = {}, {}
    for row in range(0, len(images), COLUMNS):
        names = [*images][row : row + COLUMNS]
        rows[" " * row] = torch.stack([images[name] for name in names])
        words[" " * row] = [f"{name}\n{ms[name]:.2f} ms" for name in names]
    return plot_rows(rows, words)


def plot_rows(
    batches: Mapping[str, torch.Tensor], words: Mapping[str, Sequence[str]] | None = None
) -> Picture:
    """Draw batches of images (N, 3, H, W) from 0 to 255, a row for each, with its name above.

    Args:
        words: below the images of each row.
    """
    count = max(map(len, batches.values()))
    picture = Picture(9.5, len(batches) * (9.5 / count + (0.62 if words else 0.3)))
    for axes, (name, images) in zip(picture.panels(len(batches)), batches.items()):
        for place, image in enumerate(images):
            pixels = image.permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy()
            axes.imshow(pixels, extent=(place + 0.02, place + 0.98, 0, 0.96))
        texts = words[name] if words else [""] * len(images)
        describe(axes, "", list(texts) if words else [f"{len(images)} images"])
        axes.set_xticks(np.arange(len(images)) + 0.5, texts, fontsize=8)
        axes.tick_params(length=0)
        axes.yaxis.set_visible(False)
        axes.spines[:].set_visible(False)
        label(axes, name, xlim=(0, count), ylim=(0, 0.96))
    return picture


def plot_mixtures(
    batch: Batch, mixtures: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
) -> Picture:
    """Draw images and their mixtures, each with the shares of classes in its label.

    Args:
        mixtures: images (N, 3, H, W) from 0 to 255, and labels (N, classes), by name.
    """
    mixtures = {"as they were": (batch.images, batch.labels), **mixtures}
    rows, words = {}, {}
    for name, (images, labels) in mixtures.items():
        rows[name] = images
        classes = batch.labels.argmax(dim=1).tolist()
        words[name] = [_label(row, i, batch.classes) for row, i in zip(labels, classes)]
    return plot_rows(rows, words)


def _label(row: torch.Tensor, before: int, classes: Sequence[str]) -> str:
    order = sorted(range(len(row)), key=lambda i: i != before)
    return "\n".join(f"{classes[i]} {row[i]:.2f}" for i in order if row[i] > 0.005)


def plot_crop_sizes(runs: Mapping[str, Run]) -> Picture:
    """Draw the seconds of each epoch and its crop size, by run."""
    picture = Picture(9.5, 3.0)
    axes = picture.panel()
    seconds = {name: run.steps.groupby("epoch")["step_s"].sum() for name, run in runs.items()}
    words = {
        name: [f"{epoch_px(run.config, i)} px,\n{digits(s)} s" for i, s in seconds[name].items()]
        for name, run in runs.items()
    }
    epochs = [epoch + 1 for epoch in next(iter(seconds.values())).index]
    bars(axes, epochs, seconds, words=words, colours=(GREY, BLUE), upright=True, room=1.25)
    names = {"xlabel": "epoch", "ylabel": "seconds of its steps"}
    label(axes, next(iter(runs.values())).record.machine, **names)
    legend(picture, 4)
    return picture
