"""Figures of large batches: learning rates, batch sizes, the size of updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, MaxNLocator
from torch import nn

from course import Run, rung
from course.charts import (
    ACCENT,
    COLOURS,
    DARK,
    ORANGE,
    Picture,
    describe,
    label,
    legend,
    lines,
    scatter_fit,
)
from course.lab import digits
from labs.large_batch.measurements import (
    Batch,
    best_rates,
    fit_critical_batch,
    read_rate_search,
    relative_update_sizes,
)

STYLES = ("-", "--", "-.", ":")
RULES = {"linear scaling": (1.0, "-"), "square root scaling": (0.5, "--")}


def plot_grid(table: pd.DataFrame) -> Picture:
    """Draw the final accuracy by batch size and learning rate, and two scaling rules.

    Args:
        table: from `final_epochs`.
    """
    cells = table.pivot_table("val_top1", "lr", "batch_size")
    best = best_rates(table)
    picture = Picture(9.5, 1.4 + 0.5 * len(cells))
    axes = picture.panel()
    image = axes.imshow(cells, origin="lower", aspect="auto", cmap="YlGnBu", vmin=0, vmax=1)
    for (row, column), value in np.ndenumerate(cells):
        style = {"ha": "center", "va": "center", "fontsize": 9}
        colour = "white" if value > 0.55 else DARK
        axes.text(column, row, f"{value:.2f}", color=colour, **style)
    places = np.arange(cells.shape[1])
    start = best.iloc[0]
    for name, (power, style) in RULES.items():
        rates = start["lr"] * (cells.columns / start["batch_size"]) ** power
        rows = np.interp(np.log(rates), np.log(cells.index), np.arange(len(cells)), right=np.nan)
        axes.plot(places, rows, color=ACCENT, ls=style, label=name)
    frame = {"s": 520, "marker": "s", "fc": "none", "ec": ORANGE, "lw": 2}
    axes.scatter(places, cells.index.get_indexer(best["lr"]), label="best of its batch", **frame)
    for row in best.itertuples():
        describe(axes, "best", [f"{row.batch_size} images at {row.lr:g}: {row.val_top1:.2f}"])
    axes.set_xticks(places, [f"{size:,}" for size in cells.columns])
    axes.set_yticks(np.arange(len(cells)), [f"{rate:g}" for rate in cells.index])
    machines = "\n".join(table["machine"].unique())
    label(axes, machines, xlabel="images in a batch", ylabel="learning rate")
    picture.colorbar(image, label="accuracy in validation")
    legend(picture)
    return picture


def plot_updates_needed(
    runs: Iterable[Run], scales: Mapping[str, float], loss: float = 1.8
) -> Picture:
    """Draw updates and images until a loss is reached, by batch size, with the laws for them.

    Args:
        runs: trainings at several batch sizes and learning rates.
        scales: gradient noise scales in images, by name.
    """
    measured = fit_critical_batch(runs, loss)
    sizes, updates = measured.table["batch_size"], measured.table["updates"]
    scales = {"fitted": measured.size, **scales}
    picture = Picture(9.5, 3.6)
    x = np.geomspace(sizes.min(), sizes.max(), 200)
    for axes, quantity in zip(picture.panels(1, 2), ("updates", "images")):
        power = 1 if quantity == "images" else 0
        scatter_fit(axes, {"measured": (sizes, updates * sizes**power)}, colours=DARK)
        laws = {
            f"{name}: {scale:,.0f} images": (x, measured.least * (1 + scale / x) * x**power)
            for name, scale in scales.items()
        }
        lines(axes, laws, styles=STYLES)
        label(axes, f"{quantity} until the loss is reached", xscale="log", yscale="log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: digits(value))
        axes.set_yticks([], minor=True)
        axes.set_xlabel("images in a batch")
    legend(picture, 4)
    return picture


def plot_rate_searches(runs: Mapping[str, Run]) -> Picture:
    """Draw the loss over a growing learning rate, and its lowest point."""
    searches = {name: read_rate_search(run) for name, run in runs.items()}
    picture = Picture(9.5, 3.4)
    axes = picture.panel()
    for (name, search), colour in zip(searches.items(), COLOURS):
        table, words = search.table, f"lowest loss at {search.lowest:.2g}"
        axes.plot(table["lr"], table["loss"], color=colour, alpha=0.25, lw=1)
        axes.plot(table["lr"], table["smoothed"], color=colour, label=f"{name}: {words}")
        axes.plot(search.lowest, table["smoothed"].min(), "x", color=colour, ms=8, mew=2)
        describe(axes, name, [words])
    top = 1.6 * max(search.table["smoothed"].iloc[0] for search in searches.values())
    label(axes, xlabel="learning rate", ylabel="loss (dark: smoothed)", xscale="log", ylim=(0, top))
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    return picture


def plot_update_sizes(model: nn.Module, batch: Batch, rates: Mapping[str, float]) -> Picture:
    """Draw how far the first update of each optimizer moves each layer.

    Args:
        rates: learning rates by the name of the optimizer.
    """
    configs = [rung("channels_last", optimizer=name, lr=rate) for name, rate in rates.items()]
    table = relative_update_sizes(model, batch, configs)
    picture = Picture(9.5, 3.4)
    axes = picture.panel()
    layers = dict([*table.groupby("optimizer", sort=False)])
    curves = {name: (rows["layer"], rows["ratio"]) for name, rows in layers.items()}
    lines(axes, curves, styles=STYLES, marker=".")
    for name, rows in layers.items():
        ends = f"{rows['ratio'].min():.1e} to {rows['ratio'].max():.1e}"
        describe(axes, f"{name}, smallest and largest layer", [ends])
    label(axes, xlabel="layer, from the images on", ylabel="‖update‖ ÷ ‖weights‖", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(picture, 5)
    return picture
