"""Pictures of large batches: what is learned with them, learning rates, the size of updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ON_LIGHT,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    clean,
)
from course.config import Config
from course.topics.large_batch.noise import Noise
from course.topics.large_batch.trained import Critical, Search, best, rates

COLOURS = (BLUE, ACCENT, GREEN, PURPLE, ORANGE, SKY, GREY, DARK)
LINES = ("-", "--", "-.", ":")
RULES = {"linear": (1.0, "-"), "square root": (0.5, "--")}


def grid(table: pd.DataFrame) -> Picture:
    """Accuracy at the end over batch size and learning rate, and two rules to choose the rate.

    Both lines begin at the learning rate that is best for the smallest batch. A frame shows the
    best of each batch.

    Args:
        table: what `trained.ends` returns.
    """
    cells = table.pivot_table("val_top1", "lr", "batch_size")
    chosen = best(table)
    alt = "Accuracy by batch size and learning rate; best: " + "; ".join(
        f"{row.batch_size} images at {row.lr:g}: {row.val_top1:.2f}" for row in chosen.itertuples()
    )
    picture = Picture(9.5, 1.4 + 0.5 * len(cells), alt)
    axes = picture.add_subplot()
    image = axes.imshow(cells, origin="lower", aspect="auto", cmap="YlGnBu", vmin=0, vmax=1)
    middle = 0.55  # from there on the colour is dark
    for row, column in np.ndindex(cells.shape):
        value = cells.iloc[row, column]
        colour = "white" if value > middle else ON_LIGHT
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=9)
    places = np.arange(cells.shape[1])
    first = chosen.iloc[0]
    for name, (power, line) in RULES.items():
        due = first["lr"] * (cells.columns.to_numpy() / first["batch_size"]) ** power
        at = np.interp(np.log(due), np.log(cells.index), np.arange(len(cells)), right=np.nan)
        axes.plot(places, at, color=ACCENT, ls=line, lw=1.6, label=f"{name} scaling")
    marked = [cells.index.get_loc(lr) for lr in chosen["lr"]]
    axes.scatter(
        places, marked, s=520, marker="s", fc="none", ec=ORANGE, lw=2, label="best of its batch"
    )
    axes.set_xticks(places, [f"{size:,}" for size in cells.columns])
    axes.set_yticks(np.arange(len(cells)), [f"{rate:g}" for rate in cells.index])
    axes.set(xlabel="images in a batch", ylabel="learning rate")
    axes.set_title("\n".join(dict.fromkeys(table["machine"])), loc="left", fontsize=9)
    picture.colorbar(image, label="accuracy in validation")
    picture.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return picture


def curves(tables: Mapping[str, pd.DataFrame]) -> Picture:
    """Accuracy in validation over images seen, and over updates.

    Args:
        tables: rows of `trained.learned` by name; of several seeds the mean, and their range.
    """
    picture = Picture(9.5, 3.6)
    left, right = picture.subplots(1, 2, sharey=True)
    for (name, table), colour, line in zip(tables.items(), COLOURS, LINES * 2):
        seeds = table.groupby("epoch")["val_top1"]
        updates = table.groupby("epoch")["updates"].first()
        for axes, places in ((left, seeds.mean().index), (right, updates)):
            axes.plot(places, seeds.mean(), color=colour, ls=line, marker=".", label=name)
            axes.fill_between(places, seeds.min(), seeds.max(), color=colour, alpha=0.15)
    left.set(xlabel="epochs", ylabel="accuracy in validation", ylim=(0, 1))
    right.set(xlabel="updates of the weights", xscale="log")
    for axes in (left, right):
        clean(axes)
    machines = dict.fromkeys(each for table in tables.values() for each in table["machine"])
    left.set_title("\n".join(machines), loc="left", fontsize=9)
    handles = left.get_legend_handles_labels()
    picture.legend(*handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return picture


def useful(measured: Critical, noises: Mapping[str, Noise]) -> Picture:
    """Updates and images until a loss is reached, by batch size, beside what the noise predicts.

    Args:
        measured: what `trained.critical` returned.
        noises: what `noise` returned, by name.
    """
    sizes = measured.table["batch_size"].to_numpy()
    scales = {"as measured": measured.size} | {name: each.scale for name, each in noises.items()}
    alt = "; ".join(f"{name}: {scale:.0f} images" for name, scale in scales.items())
    picture = Picture(9.5, 3.6, alt)
    at = np.geomspace(sizes.min(), sizes.max(), 200)
    updates = measured.table["updates"].to_numpy()
    axes_of = zip(picture.subplots(1, 2), ("updates", "images"), (np.ones(len(at)), at))
    for axes, what, factor in axes_of:
        shown = updates if what == "updates" else updates * sizes
        axes.plot(sizes, shown, "o", color=DARK, label="measured")
        for (name, scale), colour, line in zip(scales.items(), COLOURS, LINES):
            label = f"{name}: {scale:,.0f} images"
            due = measured.least * (1 + scale / at) * factor
            axes.plot(at, due, color=colour, ls=line, label=label)
        axes.set(xscale="log", yscale="log", xlabel="images in a batch")
        axes.set_title(f"{what} until the loss is reached", loc="left", fontsize=9)
        _plain_ticks(axes, sizes)
        clean(axes)
    handles = axes.get_legend_handles_labels()
    picture.legend(*handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return picture


def _plain_ticks(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())


def search(searches: Mapping[str, Search]) -> Picture:
    """The loss over a learning rate that grows, with two rates that it shows.

    Args:
        searches: what `trained.search` returned, by name.
    """
    alt = "; ".join(
        f"{name}: steepest at {each.steepest:.2g}, lowest at {each.lowest:.2g}"
        for name, each in searches.items()
    )
    picture = Picture(9.5, 3.4, alt)
    axes = picture.add_subplot()
    for (name, each), colour in zip(searches.items(), COLOURS):
        table = each.table
        axes.plot(table["lr"], table["loss"], color=colour, alpha=0.25, lw=1)
        axes.plot(table["lr"], table["smoothed"], color=colour, label=name)
        for rate, marker in ((each.steepest, "o"), (each.lowest, "x")):
            loss = float(np.interp(rate, table["lr"], table["smoothed"]))
            axes.plot(rate, loss, marker, color=colour, ms=8)
            axes.annotate(
                f"{rate:.2g}",
                (rate, loss),
                (0, 9),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                color=colour,
            )
    axes.plot([], [], "o", color=GREY, label="falls fastest")
    axes.plot([], [], "x", color=GREY, label="is lowest")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss of the batch")
    axes.set_ylim(0, 1.6 * max(each.table["smoothed"].iloc[0] for each in searches.values()))
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="lower left")
    clean(axes)
    return picture


def schedules(configs: Sequence[Config]) -> Picture:
    """The learning rate of each update, as the configs have it."""
    picture = Picture(9.5, 2.8)
    axes = picture.add_subplot()
    for cfg, colour, line in zip(configs, COLOURS, LINES * 2):
        name = cfg.schedule.replace("_", "-") or "stays"
        warm = f"warm-up of {cfg.lr_warmup}, " if cfg.lr_warmup else ""
        axes.plot(rates(cfg), color=colour, ls=line, label=warm + name)
    axes.set(xlabel="update", ylabel="learning rate")
    axes.set_ylim(bottom=0)
    picture.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    clean(axes)
    return picture


def update_sizes(table: pd.DataFrame) -> Picture:
    """How far an update moves each layer, by optimizer.

    Args:
        table: what `trained.update_sizes` returns.
    """
    spans = table.groupby("optimizer", sort=False)["ratio"].agg(["min", "max"])
    alt = "Update over weights, smallest and largest layer: " + "; ".join(
        f"{name} {row['min']:.1e} to {row['max']:.1e}" for name, row in spans.iterrows()
    )
    picture = Picture(9.5, 3.4, alt)
    axes = picture.add_subplot()
    for (name, rows), colour, line in zip(
        table.groupby("optimizer", sort=False), COLOURS, LINES * 2
    ):
        axes.plot(rows["layer"], rows["ratio"], color=colour, ls=line, marker=".", label=name)
    axes.set(yscale="log", xlabel="layer, from the images on", ylabel="‖update‖ ÷ ‖weights‖")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    picture.legend(loc="outside right center", frameon=False, fontsize=9)
    clean(axes)
    return picture


def by_optimizer(table: pd.DataFrame) -> Picture:
    """Accuracy at the end, a dot for each seed: optimizers beside each other, a colour a batch.

    Args:
        table: rows of `trained.ends`.
    """
    names = [*dict.fromkeys(table["optimizer"])]
    means = table.groupby(["batch_size", "optimizer"], sort=False)["val_top1"].mean()
    alt = "Mean accuracy: " + "; ".join(
        f"{name} at {size}: {mean:.2f}" for (size, name), mean in means.items()
    )
    picture = Picture(9.5, 3.2, alt)
    axes = picture.add_subplot()
    sizes = sorted({*table["batch_size"]})
    for number, (size, colour) in enumerate(zip(sizes, COLOURS)):
        rows = table[table["batch_size"] == size]
        shift = 0.16 * (number - (len(sizes) - 1) / 2)
        places = [names.index(name) + shift for name in rows["optimizer"]]
        axes.plot(places, rows["val_top1"], "o", color=colour, alpha=0.6, ms=5)
        of_size = [means[size, name] for name in names]
        axes.plot(
            np.arange(len(names)) + shift,
            of_size,
            "_",
            color=colour,
            ms=14,
            mew=2,
            label=f"{size:,} images",
        )
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="accuracy in validation")
    axes.set_title("\n".join(dict.fromkeys(table["machine"])), loc="left", fontsize=9)
    picture.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    clean(axes)
    return picture
