"""Figures of searches: where trials look, which end early, what matters, what it takes, luck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.charts.base import ACCENT, BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, SKY, Picture
from course.charts.primitives import heading, label, legend, limit, lines, scatter_fit
from labs.day4_4_search.chance import best_by_chance
from labs.day4_4_search.replay import Recorded

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, DARK)
LINES = ("-", "--", "-.", ":")
STATES = {"complete": (BLUE, "o"), "pruned": (ORANGE, "x")}
OTHER = (GREY, ".")
UNITS = {"device_s": ("device seconds, added up", 1), "joules": ("kilojoules, added up", 1e3)}
RANGE = 20  # a field whose values differ by so large a factor is shown in factors


def plot_looked(recorded: Recorded, searches: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw where each search has looked, over what it would find there; a star: its best trial.

    Args:
        searches: what `points` returns, by name.
    """
    picture = Picture(10, 3.6)
    panels = picture.panels(1, len(searches), sharey=True)
    rates, sizes = recorded.cells.index.to_numpy(), recorded.cells.columns.to_numpy()
    for axes, (name, table) in zip(panels, searches.items()):
        shown = axes.contourf(sizes, rates, recorded.cells, 12, cmap="Blues", vmin=0, vmax=1.1)
        axes.scatter(table["batch_size"], table["lr"], s=24, color=ACCENT, ec="white")
        best = table.loc[table["val_top1"].idxmax()]
        axes.plot(best["batch_size"], best["lr"], "*", color=ORANGE, mec="black", ms=15)
        axes.set(xscale="log", yscale="log")
        axes.minorticks_off()
        axes.set_xticks(sizes[::2], map("{:,}".format, sizes[::2]))
        title = f"{name}: {table['best'].iloc[-1]:.3f}"
        label(axes, title, size=10, xlabel="images in a batch")
    panels[0].set_ylabel("learning rate")
    picture.colorbar(shown, ax=panels, label="accuracy")
    heading(picture, recorded.machine)
    return picture


def plot_curves(table: pd.DataFrame) -> Picture:
    """Draw accuracy after each epoch of every trial: to the end, or to where it was pruned.

    Args:
        table: what `epochs` returns, of one search or of several, a panel each.
    """
    searches = table.groupby("search", sort=False)
    picture = Picture(10, 3.5)
    for axes, (name, search) in zip(picture.panels(1, len(searches), sharey=True), searches):
        for _, rows in search.groupby("trial"):
            colour, _ = STATES.get(rows["state"].iloc[0], OTHER)
            axes.plot(rows["epoch"], rows["val_top1"], color=colour, lw=1.2, alpha=0.75)
        ends = search.groupby("trial").last()
        _by_state(axes, ends, "epoch")
        title = f"{name}: {(ends['state'] == 'pruned').sum()} of {len(ends)} pruned"
        label(axes, title, size=10, xlabel="epoch", xticks=range(1, table["epoch"].max() + 1))
    picture.axes[0].set_ylabel("accuracy in validation")
    legend(picture)
    heading(picture, _machines(table))
    return picture


def _by_state(axes: Axes, trials: pd.DataFrame, column: str) -> None:
    """Draw the accuracy of trials over a column, with a mark for each state."""
    for state, rows in trials.groupby("state"):
        colour, form = STATES.get(state, OTHER)
        points = {state: (rows[column], rows["val_top1"])}
        scatter_fit(axes, points, colours=colour, markers=form, hollow=True)


def plot_progress(table: pd.DataFrame) -> Picture:
    """Draw the best accuracy so far over what was spent: device seconds, and joules where known.

    Args:
        table: what `progress` returns.
    """
    measured = [column for column in UNITS if table[column].notna().any()]
    picture = Picture(10, 3.5)
    for axes, column in zip(picture.panels(1, len(measured), sharey=True), measured):
        words, unit = UNITS[column]
        searches = dict([*table.assign(spent=table[column] / unit).groupby("search", sort=False)])
        paths = {name: (rows["spent"], rows["best"]) for name, rows in searches.items()}
        lines(axes, paths, colours=COLOURS, styles=LINES, steps=True)
        for rows, colour in zip(searches.values(), COLOURS):
            cut = rows[rows["state"] == "pruned"]
            axes.plot(cut["spent"], cut["best"], "x", color=colour, ms=5)
        label(axes, xlabel=words, xlim=(0, None))
    picture.axes[0].set_ylabel("best accuracy so far (cross: pruned)")
    legend(picture)
    heading(picture, _machines(table))
    return picture


def plot_by_field(table: pd.DataFrame, fields: Sequence[str]) -> Picture:
    """Draw the accuracy of each trial over its value of each field, a panel each.

    Args:
        table: what `trials` returns, of one search.
        fields: names of columns; numbers.
    """
    best = table["val_top1"].rank(ascending=False, method="first") <= 3
    picture = Picture(10, 3)
    for axes, field in zip(picture.panels(1, len(fields), sharey=True), fields):
        _by_state(axes, table[~best], field)
        top = {"three best": (table.loc[best, field], table.loc[best, "val_top1"])}
        scatter_fit(axes, top, colours=ACCENT, size=9)
        low, high = table[field].min(), table[field].max()
        in_factors = low > 0 and high / low > RANGE
        label(axes, xlabel=field, xscale="log" if in_factors else "linear")
    picture.axes[0].set_ylabel("accuracy in validation")
    legend(picture)
    heading(picture, _machines(table))
    return picture


def plot_chance(values: Sequence[float], machine: str = "") -> Picture:
    """Draw equal trainings next to each other, and how the best of them grows with their number."""
    table, mean, best = best_by_chance(values), float(np.mean(values)), int(np.argmax(values))
    picture = Picture(10, 3.3)
    left, right = picture.panels(1, 2, sharey=True)
    scatter_fit(left, {"a seed": (range(len(values)), values)}, colours=BLUE)
    scatter_fit(left, {"the best": ([best], [values[best]])}, colours=ORANGE, markers="*", size=15)
    by_count = (table["trials"], table["best"])
    lines(right, {"the best, on average": by_count}, colours=ACCENT, marker=".")
    for axes in (left, right):
        limit(axes, mean, f"mean: {mean:.3f}", colour=DARK)
    label(left, machine, xlabel="seed", ylabel="accuracy in validation")
    label(right, xlabel="equal trainings to choose from")
    legend(picture, 4)
    return picture


def plot_tested(table: pd.DataFrame) -> Picture:
    """Draw each training's accuracy in validation, and on images that it had not looked at.

    Args:
        table: what `tested` returns, of equal trainings.
    """
    ends = table[["val_top1", "test_top1"]]
    chosen, mean = ends.loc[ends["val_top1"].idxmax()], ends.mean()
    picture = Picture(7, 3.8)
    axes = picture.panel()
    axes.plot([0, 1], ends.T, ".-", color=GREY, lw=1)
    pairs = {"mean of all": ([0, 1], mean), "chosen for its validation": ([0, 1], chosen)}
    lines(axes, pairs, colours=(DARK, ACCENT), styles=("--", "-"))
    axes.set_xticks([0, 1], ["in validation", "on images not looked at"])
    label(axes, ylabel="accuracy", xlim=(-0.25, 1.25))
    legend(picture)
    heading(picture, _machines(table))
    return picture


def _machines(table: pd.DataFrame) -> str:
    return "; ".join(dict.fromkeys(table["machine"]))
