"""Figures of large batches: learning rates, batch sizes, the size of updates, optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from course.charts.base import ACCENT, DARK, GREY, ON_LIGHT, ORANGE, Picture
from course.charts.primitives import COLOURS, describe, label, legend, lines, mark, scatter_fit
from course.config import Config
from labs.day3_3_large_batch.gradient_noise import Noise
from labs.day3_3_large_batch.trainings import Critical, Search, best, rates

STYLES = ("-", "--", "-.", ":")
RULES = {"linear": (1.0, "-"), "square root": (0.5, "--")}


def plot_grid(table: pd.DataFrame) -> Picture:
    """Draw the accuracy at the end by batch size and learning rate, and two rules for the rate.

    Both lines begin at the learning rate that is best for the smallest batch. A frame shows the
    best of each batch.

    Args:
        table: what `trained.ends` returns.
    """
    cells = table.pivot_table("val_top1", "lr", "batch_size")
    chosen = best(table)
    picture = Picture(9.5, 1.4 + 0.5 * len(cells))
    axes = picture.panel()
    image = axes.imshow(cells, origin="lower", aspect="auto", cmap="YlGnBu", vmin=0, vmax=1)
    for (row, column), value in np.ndenumerate(cells):
        look = {"ha": "center", "va": "center", "fontsize": 9}
        ink = "white" if value > 0.55 else ON_LIGHT  # from there on the colour is dark
        axes.text(column, row, f"{value:.2f}", color=ink, **look)
    places = np.arange(cells.shape[1])
    first = chosen.iloc[0]
    for name, (power, style) in RULES.items():
        due = first["lr"] * (cells.columns / first["batch_size"]) ** power
        rows = np.interp(np.log(due), np.log(cells.index), np.arange(len(cells)), right=np.nan)
        axes.plot(places, rows, color=ACCENT, ls=style, label=f"{name} scaling")
    frame = {"s": 520, "marker": "s", "fc": "none", "ec": ORANGE, "lw": 2}
    axes.scatter(places, cells.index.get_indexer(chosen["lr"]), label="best of its batch", **frame)
    for row in chosen.itertuples():
        describe(axes, "best", [f"{row.batch_size} images at {row.lr:g}: {row.val_top1:.2f}"])
    axes.set_xticks(places, [f"{size:,}" for size in cells.columns])
    axes.set_yticks(np.arange(len(cells)), [f"{rate:g}" for rate in cells.index])
    machines = "\n".join(dict.fromkeys(table["machine"]))
    label(axes, machines, xlabel="images in a batch", ylabel="learning rate")
    picture.colorbar(image, label="accuracy in validation")
    legend(picture)
    return picture


def plot_useful(measured: Critical, noises: Mapping[str, Noise]) -> Picture:
    """Draw updates and images until a loss is reached, by batch size, and what noise predicts.

    Args:
        measured: what `trained.critical` returned.
        noises: what `noise` returned, by name.
    """
    sizes, updates = measured.table["batch_size"], measured.table["updates"]
    scales = {"as measured": measured.size} | {name: each.scale for name, each in noises.items()}
    picture = Picture(9.5, 3.6)
    at = np.geomspace(sizes.min(), sizes.max(), 200)
    for axes, what in zip(picture.panels(1, 2), ("updates", "images")):
        images, images_at = (sizes, at) if what == "images" else (1, 1)
        scatter_fit(axes, {"measured": (sizes, updates * images)}, colours=DARK)
        fits = {
            f"{name}: {scale:,.0f} images": (at, measured.least * (1 + scale / at) * images_at)
            for name, scale in scales.items()
        }
        lines(axes, fits, styles=STYLES)
        label(axes, f"{what} until the loss is reached", xscale="log", yscale="log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("images in a batch")
    legend(picture, 4)
    return picture


def plot_search(searches: Mapping[str, Search]) -> Picture:
    """Draw the loss over a growing rate, and two rates that it shows (see `trained.search`)."""
    picture = Picture(9.5, 3.4)
    axes = picture.panel()
    for (name, each), colour in zip(searches.items(), COLOURS):
        table = each.table
        axes.plot(table["lr"], table["loss"], color=colour, alpha=0.25, lw=1)
        axes.plot(table["lr"], table["smoothed"], color=colour, label=name)
        for rate, marker in ((each.steepest, "o"), (each.lowest, "x")):
            loss = np.interp(rate, table["lr"], table["smoothed"])
            axes.plot(rate, loss, marker, color=colour, ms=8)
            mark(axes, rate, loss, f"{rate:.2g}", "above", colour=colour)
        describe(axes, name, [f"steepest at {each.steepest:.2g}, lowest at {each.lowest:.2g}"])
    axes.plot([], [], "o", color=GREY, label="falls fastest")
    axes.plot([], [], "x", color=GREY, label="is lowest")
    top = 1.6 * max(each.table["smoothed"].iloc[0] for each in searches.values())
    frame = {"xlabel": "learning rate", "ylabel": "loss of the batch"}
    label(axes, xscale="log", ylim=(0, top), **frame)
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="lower left")
    return picture


def plot_schedules(configs: Sequence[Config]) -> Picture:
    """Draw the learning rate of each update, as the configs have it."""
    picture = Picture(9.5, 2.8)
    axes = picture.panel()
    curves = {}
    for cfg in configs:
        warm_up = f"warm-up of {cfg.lr_warmup}, " if cfg.lr_warmup else ""
        course = rates(cfg)
        curves[warm_up + (cfg.schedule.replace("_", "-") or "stays")] = range(len(course)), course
    lines(axes, curves, styles=STYLES)
    label(axes, xlabel="update", ylabel="learning rate", ylim=(0, None))
    legend(picture)
    return picture


def plot_update_sizes(table: pd.DataFrame) -> Picture:
    """Draw how far an update moves each layer (a table of `trained.update_sizes`)."""
    picture = Picture(9.5, 3.4)
    axes = picture.panel()
    layers = dict(list(table.groupby("optimizer", sort=False)))
    curves = {name: (rows["layer"], rows["ratio"]) for name, rows in layers.items()}
    lines(axes, curves, styles=STYLES, marker=".")
    for name, rows in layers.items():
        ends = f"{rows['ratio'].min():.1e} to {rows['ratio'].max():.1e}"
        describe(axes, f"{name}, smallest and largest layer", [ends])
    frame = {"xlabel": "layer, from the images on", "ylabel": "‖update‖ ÷ ‖weights‖"}
    label(axes, yscale="log", **frame)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(picture, 5)
    return picture


def plot_by_optimizer(table: pd.DataFrame) -> Picture:
    """Draw the accuracy at the end, a dot per seed (rows of `trained.ends`)."""
    picture = Picture(9.5, 3.2)
    axes = picture.panel()
    for (size, rows), colour in zip(table.groupby("batch_size"), COLOURS):
        axes.plot(rows["optimizer"], rows["val_top1"], "o", color=colour, alpha=0.6, ms=5)
        means = rows.groupby("optimizer", sort=False)["val_top1"].mean()
        axes.plot(means, "_", color=colour, ms=20, mew=2, label=f"{size:,} images, mean")
        each = [f"{name} {mean:.2f}" for name, mean in means.items()]
        describe(axes, f"{size:,} images, mean", each)
    machines = "\n".join(dict.fromkeys(table["machine"]))
    label(axes, machines, ylabel="accuracy in validation")
    legend(picture)
    return picture
