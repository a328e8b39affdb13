"""Pictures of augmentation: what is changed, what is mixed, what was learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course.charts.base import ACCENT, BLUE, GREEN, GREY, ORANGE, PURPLE, Picture, clean
from course.topics.augmentation.images import Batch

COLUMNS = 7
COLOURS = (GREY, BLUE, ACCENT, GREEN, ORANGE, PURPLE)
LINES = ("-", "--", "-.", ":")


def operations(changed: Mapping[str, torch.Tensor], costs: pd.DataFrame) -> Picture:
    """An image after each operation of RandAugment, with what that costs a core."""
    ms = costs.set_index("operation")["ms"]
    alt = "One photograph after each operation: " + "; ".join(
        f"{name} {ms[name]:.2f} ms" for name in changed
    )
    grid = _grid(len(changed), COLUMNS, alt=alt)
    for axes, (name, image) in zip(grid, changed.items()):
        _show(axes, image, f"{name}\n{ms[name]:.2f} ms")
    return grid[0].figure


def rows(batches: Mapping[str, torch.Tensor]) -> Picture:
    """Batches of as many images, one row each, with its name before it."""
    count = max(map(len, batches.values()))
    alt = f"{len(batches)} rows of {count} images: {', '.join(batches)}"
    grid = _grid(count * len(batches), count, alt=alt, above=0.3)
    for number, (name, images) in enumerate(batches.items()):
        for place, image in enumerate(images):
            _show(grid[number * count + place], image)
        grid[number * count].set_title(name, loc="left", fontsize=9)
    return grid[0].figure


def mixed(batch: Batch, mixtures: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> Picture:
    """Images beside what was mixed of them, each with its label: classes and their shares.

    Args:
        mixtures: images (N, 3, H, W), as bytes or from 0 to 255, and labels (N, classes), by name.
    """
    everything = {"as they were": (batch.images, batch.labels), **mixtures}
    count = len(batch.images)
    said = [
        f"{name}: {'; '.join(_label(row, batch.classes, ', ') for row in labels)}"
        for name, (_, labels) in everything.items()
    ]
    grid = _grid(count * len(everything), count, alt=". ".join(said), above=0.62)
    for number, (name, (images, labels)) in enumerate(everything.items()):
        for place, (image, label) in enumerate(zip(images, labels)):
            axes = grid[number * count + place]
            _show(axes, image)
            axes.set_xlabel(_label(label, batch.classes, "\n"), fontsize=8)
        grid[number * count].set_title(name, loc="left", fontsize=9)
    return grid[0].figure


def _label(row: torch.Tensor, classes: Sequence[str], between: str) -> str:
    there = [number for number in row.argsort(descending=True).tolist() if row[number] > 0.005]
    return between.join(f"{classes[number]} {row[number]:.2f}" for number in there)


def _grid(count: int, columns: int, alt: str, above: float = 0.42) -> list[Axes]:
    lines = -(-count // columns)
    side = 9.5 / columns
    picture = Picture(9.5, lines * (side + above), alt)
    grid = picture.subplots(lines, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    return [*grid.flat]


def _show(axes: Axes, image: torch.Tensor, title: str = "") -> None:
    axes.imshow(image.permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy())
    if title:
        axes.set_title(title, fontsize=8.5)


def beta(alphas: Sequence[float], draws: int = 400_000) -> Picture:
    """How often each share is drawn from Beta(alpha, alpha)."""
    picture = Picture(
        7, 2.8, "Densities of Beta(alpha, alpha): below 1 high at both ends, at 1 flat"
    )
    axes = picture.add_subplot()
    random, edges = np.random.default_rng(0), np.linspace(0, 1, 51)
    for alpha, colour, line in zip(alphas, COLOURS[1:], LINES):
        counts, _ = np.histogram(random.beta(alpha, alpha, draws), edges)
        middles, heights = (edges[1:] + edges[:-1]) / 2, counts / draws * (len(edges) - 1)
        axes.plot(middles, heights, color=colour, ls=line, label=f"α = {alpha:g}")
    axes.set(xlabel="share λ that an image keeps", ylabel="how often", ylim=(0, 4), xlim=(0, 1))
    axes.legend(frameon=False, fontsize=9, ncols=len(alphas), loc="upper center")
    clean(axes)
    return picture


def learned(table: pd.DataFrame) -> Picture:
    """Loss of training and accuracy of validation over epochs: means over seeds, and their range.

    Args:
        table: what `measured.brought` returns.
    """
    picture = Picture(9.5, 3.8)
    for axes, column, title in zip(
        picture.subplots(1, 2), ("loss", "val_top1"), ("loss in training", "accuracy in validation")
    ):
        for (way, runs), colour, line in zip(table.groupby("way", sort=False), COLOURS, LINES):
            seeds = runs.groupby("epoch")[column]
            axes.plot(seeds.mean(), color=colour, ls=line, label=way)
            axes.fill_between(seeds.min().index, seeds.min(), seeds.max(), color=colour, alpha=0.15)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("epoch")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        clean(axes)
    machine = "\n".join(dict.fromkeys(table["machine"]))
    handles = axes.get_legend_handles_labels()
    picture.legend(*handles, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    picture.suptitle(machine, fontsize=9, x=0.01, ha="left")
    return picture


def growing(runs: Mapping[str, pd.DataFrame], title: str = "") -> Picture:
    """Seconds of each epoch, with the size of its crops, a group of bars for each run.

    Args:
        runs: what `measured.epochs` returns, by name.
    """
    picture = Picture(9.5, 3.0)
    axes = picture.add_subplot()
    width = 0.8 / len(runs)
    for number, ((name, table), colour) in enumerate(zip(runs.items(), COLOURS)):
        places = table["epoch"] + (number - (len(runs) - 1) / 2) * width
        axes.bar(places, table["seconds"], width * 0.95, color=colour, label=name)
        for place, row in zip(places, table.itertuples()):
            axes.text(
                place, row.seconds, f"{row.image_px} px", ha="center", va="bottom", fontsize=8
            )
    axes.set(xlabel="epoch", ylabel="seconds of its steps")
    axes.set_xticks(next(iter(runs.values()))["epoch"])
    axes.set_title(title, loc="left", fontsize=9)
    picture.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    clean(axes)
    return picture
