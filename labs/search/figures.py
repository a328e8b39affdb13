"""Figures of searches: sampled points, pruned trials, early rankings, fields, test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.charts import (
    ACCENT,
    BLUE,
    DARK,
    GREY,
    ORANGE,
    Picture,
    heading,
    label,
    legend,
    lines,
    scatter_fit,
)
from labs.search.halving import Replay, rank_correlation
from labs.search.replay import AccuracyGrid

STATES = {"complete": (BLUE, "o"), "pruned": (ORANGE, "x")}
OTHER = (GREY, ".")


def plot_sampled_points(grid: AccuracyGrid, searches: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw the trials of each search over the recorded accuracies; a star: its best trial.

    Args:
        searches: tables of `simulate_search`, by name.
    """
    picture = Picture(10, 3.6)
    panels = picture.panels(1, len(searches), sharey=True)
    rates, sizes = grid.cells.index.to_numpy(), grid.cells.columns.to_numpy()
    for axes, (name, table) in zip(panels, searches.items()):
        filled = axes.contourf(sizes, rates, grid.cells, 12, cmap="Blues", vmin=0, vmax=1.1)
        axes.scatter(table["batch_size"], table["lr"], s=24, color=ACCENT, ec="white")
        best = table.loc[table["val_top1"].idxmax()]
        axes.plot(best["batch_size"], best["lr"], "*", color=ORANGE, mec="black", ms=15)
        axes.set(xscale="log", yscale="log")
        axes.minorticks_off()
        axes.set_xticks(sizes[::2], map("{:,}".format, sizes[::2]))
        title = f"{name}: {table['best'].iloc[-1]:.3f}"
        label(axes, title, size=10, xlabel="images in a batch")
    panels[0].set_ylabel("learning rate")
    picture.colorbar(filled, ax=panels, label="accuracy")
    heading(picture, grid.machine)
    return picture


def plot_curves(table: pd.DataFrame) -> Picture:
    """Draw the accuracy after each epoch of every trial, a panel per search.

    Args:
        table: from `epochs_table`.
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


def plot_by_field(table: pd.DataFrame, fields: Sequence[str]) -> Picture:
    """Draw the accuracy of each trial over its value of each numeric field, a panel each.

    Args:
        table: from `trials_table`, of one search.
    """
    best = table["val_top1"].rank(ascending=False, method="first") <= 3
    picture = Picture(10, 3)
    for axes, field in zip(picture.panels(1, len(fields), sharey=True), fields):
        _by_state(axes, table[~best], field)
        top = {"three best": (table.loc[best, field], table.loc[best, "val_top1"])}
        scatter_fit(axes, top, colours=ACCENT, size=9)
        low, high = table[field].min(), table[field].max()
        is_logarithmic = low > 0 and high / low > 20
        label(axes, xlabel=field, xscale="log" if is_logarithmic else "linear")
    picture.axes[0].set_ylabel("accuracy in validation")
    legend(picture)
    heading(picture, _machines(table))
    return picture


def plot_early_ranking(searches: Mapping[str, Replay], epoch: int = 1) -> Picture:
    """Draw each trial's final accuracy over that after an early epoch, a panel per search."""
    picture = Picture(10, 3.4)
    for axes, (name, replay) in zip(
        picture.panels(1, len(searches), sharey=True), searches.items()
    ):
        early, final = replay.curves[:, epoch - 1], replay.curves[:, -1]
        best = final >= np.sort(final)[-3]
        groups = {"other trials": (~best, GREY), "the three best at the end": (best, ACCENT)}
        for group, (chosen, colour) in groups.items():
            scatter_fit(axes, {group: (early[chosen], final[chosen])}, colours=colour)
        correlation = rank_correlation(replay)[epoch]
        title = f"{name}: rank correlation {correlation:.2f}"
        label(axes, title, size=10, xlabel=f"accuracy after epoch {epoch}")
    picture.axes[0].set_ylabel("accuracy at the end")
    legend(picture)
    return picture


def plot_holdout(table: pd.DataFrame) -> Picture:
    """Draw each training's accuracy in validation, and on test images, which no search used.

    Args:
        table: from `holdout_table`, of equal training runs.
    """
    accuracies = table[["val_top1", "test_top1"]]
    chosen = accuracies.loc[accuracies["val_top1"].idxmax()]
    picture = Picture(7, 3.8)
    axes = picture.panel()
    axes.plot([0, 1], accuracies.T, ".-", color=GREY, lw=1)
    pairs = {
        "mean of all": ([0, 1], accuracies.mean()),
        "best on validation images": ([0, 1], chosen),
    }
    lines(axes, pairs, colours=(DARK, ACCENT), styles=("--", "-"))
    axes.set_xticks([0, 1], ["on validation images", "on test images"])
    label(axes, ylabel="accuracy", xlim=(-0.25, 1.25))
    legend(picture)
    heading(picture, _machines(table))
    return picture


def _machines(table: pd.DataFrame) -> str:
    return "; ".join(table["machine"].unique())
