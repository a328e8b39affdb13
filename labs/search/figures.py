"""Figures of searches: sampled points, pruned trials, workers over time, test images."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from course.charts import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    Picture,
    describe,
    heading,
    label,
    legend,
    lines,
    scatter_fit,
    timeline,
)
from labs.search.asha import Promote, simulate_workers
from labs.search.halving import Replay
from labs.search.replay import AccuracyGrid, simulate_search
from labs.search.trial_queue import SAMPLERS

STATES = {"complete": (BLUE, "o"), "pruned": (ORANGE, "x")}
OTHER = (GREY, ".")
ROUNDS = {1: GREY, 2: BLUE, 3: GREEN}


def plot_sampled_points() -> Picture:
    """Draw the trials of one search per sampler over the recorded accuracies; a star: the best."""
    grid = AccuracyGrid()
    searches = {name: simulate_search(name, grid, seed=5) for name in SAMPLERS}
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
        title = f"{name}: {best['val_top1']:.3f}"
        label(axes, title, size=10, xlabel="images in a batch")
    panels[0].set_ylabel("learning rate")
    picture.colorbar(filled, ax=panels, label="accuracy")
    heading(picture, grid.machine)
    return picture


def plot_curves(table: pd.DataFrame) -> Picture:
    """Draw the accuracy after each epoch of every trial, a panel per search.

    Args:
        table: from `Search.epochs` or `Replay.table`.
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
    heading(picture, "; ".join(table["machine"].unique()))
    return picture


def _by_state(axes: Axes, trials: pd.DataFrame, column: str) -> None:
    """Draw the accuracy of trials over a column, with a mark for each state."""
    for state, rows in trials.groupby("state"):
        colour, form = STATES.get(state, OTHER)
        points = {state: (rows[column], rows["val_top1"])}
        scatter_fit(axes, points, colours=colour, markers=form, hollow=True)


def plot_holdout(table: pd.DataFrame, machine: str) -> Picture:
    """Draw each training's accuracy in validation, and on test images, which no search used.

    Args:
        table: columns validation and test, a row per training with the same settings.
    """
    chosen = table.loc[table["validation"].idxmax()]
    picture = Picture(7, 3.8)
    axes = picture.panel()
    axes.plot([0, 1], table.T, ".-", color=GREY, lw=1)
    pairs = {"mean of all": ([0, 1], table.mean()), "best in validation": ([0, 1], chosen)}
    lines(axes, pairs, colours=(DARK, ACCENT), styles=("--", "-"))
    axes.set_xticks([0, 1], ["on validation images", "on test images"])
    label(axes, ylabel="accuracy", xlim=(-0.25, 1.25))
    legend(picture)
    heading(picture, machine)
    return picture


def plot_timelines(promote: Promote, replay: Replay, slow: float = 4.0) -> Picture:
    """Draw what eight workers train over time, with and without a barrier after each round.

    Args:
        promote: the rule of ASHA, as `asha.promote`.
        slow: how many times as long the last worker takes for an epoch.
    """
    picture = Picture(10, 5)
    speeds = (1.0,) * 7 + (slow,)
    plans = {"with a barrier after each round": True, "ASHA, without barriers": False}
    panels = picture.panels(2, sharex=True)
    for axes, (name, waits) in zip(panels, plans.items()):
        table = simulate_workers(promote, replay, speeds, waits=waits)
        lanes = {
            f"worker {worker}": [
                (row.begin, row.end - row.begin - 0.06, ROUNDS[row.round], "")
                for row in rows.itertuples()
            ]
            for worker, rows in table.groupby("worker")
        }
        timeline(axes, lanes)
        ends = table.loc[table["round"] == 3, "end"]
        words = f"first complete training after {ends.min():g}, last after {ends.max():g}"
        describe(axes, name, [words])
        label(axes, f"{name}: {words}; {table['epochs'].sum()} epochs", size=10)
    for round_, colour in ROUNDS.items():
        panels[0].plot([], [], "s", color=colour, label=f"round {round_}")
    panels[-1].set_xlabel("time, in epochs of a fast worker")
    legend(picture)
    return picture
