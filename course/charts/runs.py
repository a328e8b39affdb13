"""Plot runs: the ladder, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course.charts.base import ACCENT, BLUE, GREEN, GREY, PHASE_COLOURS, Picture
from course.charts.primitives import bars, describe, heading, label, legend, lines, mark, stack
from course.runs.record import Record
from course.text import digits

# Names of a learning table's columns in a figure.
LEARNING_LABELS = {
    "epoch": "epoch",
    "updates": "weight updates (log scale)",
    "loss": "training loss",
    "val_top1": "validation accuracy",
}


def plot_ladder(table: pd.DataFrame, reference: pd.DataFrame | None = None) -> Picture:
    """Plot images per second of each rung, with quartiles and the ratio to the first rung.

    Args:
        table: from `report.ladder_table` or `course.recorded`; if several machines ran a rung,
            their names are shown.
        reference: the same for a different machine, in a second panel.
    """
    tables = [table, *([] if reference is None else [reference])]
    tables = [rungs[rungs["images_per_s"].notna()] for rungs in tables]
    heights = [1.1 + 0.55 * max(len(rungs), 1) for rungs in tables]
    picture = Picture(8.5, sum(heights))
    for axes, rungs in zip(picture.panels(len(tables), height_ratios=heights), tables):
        _ladder(axes, rungs)
    return picture


def _ladder(axes: Axes, table: pd.DataFrame) -> None:
    several = table.groupby("rung")["machine"].transform("nunique") > 1
    names = table["rung"].mask(several, table["rung"] + "\n" + table["machine"].str[:20])
    bars(
        axes,
        list(names),
        table["images_per_s"],
        words=[_speed_words(row) for _, row in table.iterrows()],
        low=table["images_per_s_q1"],
        high=table["images_per_s_q3"],
        colours=[GREY, *[BLUE] * len(table)],
        room=1.48,
    )
    samples = "sequences" if table.get("tokens", pd.Series(0)).any() else "images"
    setups = dict.fromkeys(table["machine"] + ", " + table["setup"])
    label(axes, "\n".join(setups), xlabel=f"{samples} per second: median, with quartiles")


def _speed_words(row: pd.Series) -> str:
    if original := row.get("same_as", ""):  # it did not run
        return f"the same computation as {original}"
    memory = f", {row['peak_gib']:.1f} GiB" if pd.notna(row["peak_gib"]) else ""
    speed = f"{digits(row['images_per_s'])} images/s"
    if tokens := row.get("tokens", 0):
        speed = f"{digits(row['images_per_s'] * tokens)} tokens/s"
    return f"{speed} = {digits(row['ratio'])}×{memory}"


def plot_ladder_progress(table: pd.DataFrame, machine: str, recorded: str) -> Picture:
    """Plot a learner's ladder, each rung relative to the one before, next to a recorded GPU's.

    Args:
        table: from `course.checks.ladder.Ladder`.
        machine: where the learner measured; empty if nothing was measured yet.
        recorded: the recorded machine, and what it trained on.
    """
    picture = Picture(10.5, 1.5 + 0.5 * len(table))
    left, right = picture.panels(1, 2, sharey=True, width_ratios=(3, 2))
    _plot_ratios(left, table)
    label(
        left,
        f"yours: {machine or 'nothing measured yet'}",
        xlabel="times the images per second of the rung before",
    )
    speed = table["recorded_images_per_s"]
    ratio = (speed / speed.shift()).map(lambda x: f", {digits(x)}×" if x == x else "")
    on_cpu = (table["recorded_on"] == "CPU").map({True: ", by its CPU", False: ""})
    words = speed.fillna(0).map(digits) + " images/s" + on_cpu + ratio
    words = words.where(speed.notna(), "from files: lab " + table["lab"].astype(str))
    bars(right, list(table["rung"]), speed, words=list(words), colours=GREEN, room=1.75)
    label(right, recorded, xlabel="images per second")
    return picture


def _plot_ratios(axes: Axes, table: pd.DataFrame) -> None:
    """Plot ratios to the rung before as bars, and predictions as open diamonds."""
    first = pd.Series([1.0] + [np.nan] * (len(table) - 1))
    ratio = table["ratio"].astype(float).fillna(first.where(table["images_per_s"].notna()))
    predicted, low, high = (table[name].astype(float) for name in ("predicted", "low", "high"))
    ends = pd.concat([ratio, predicted, high], axis=1).max(axis=1).fillna(0)
    bars(
        axes,
        list(table["rung"]),
        ratio,
        words=[""] * len(table),
        low=low,
        high=high,
        colours=[GREY, *[BLUE] * len(table)],
    )
    for place, row in table.iterrows():
        mark(axes, ends[place], place, f"  {_rung_words(row)}")  # beyond the diamond
    axes.set_xlim(0, max(1.0, ends.max()) * 1.6)
    if predicted.notna().any():
        look = {"mfc": "none", "mec": ACCENT, "mew": 1.6, "ms": 8}
        axes.plot(predicted, table.index, "D", label="your prediction", **look)
        guesses = zip(table["rung"], predicted)
        describe(
            axes, "your prediction", [f"{rung}: {digits(x)}×" for rung, x in guesses if x == x]
        )
        axes.legend(frameon=False, fontsize=9, loc="lower right")


def _rung_words(row: pd.Series) -> str:
    if pd.isna(row["images_per_s"]):
        return f"not yet: lab {row['lab']}"
    if pd.isna(row["ratio"]):
        return f"{digits(row['images_per_s'])} images/s"
    return f"{digits(row['ratio'])}×"


def plot_step_and_loss(runs: Sequence[tuple[str, Record, pd.DataFrame]]) -> Picture:
    """Plot where a step's time goes (left) and the losses (right).

    Args:
        runs: (name, record, steps) of each run, the baseline first.
    """
    picture = Picture(10, 1.9 + 0.5 * len(runs))
    left, right = picture.panels(1, 2, width_ratios=(3, 2))
    phases = {
        phase: [(getattr(record, f"{phase}_s") or 0) * 1e3 for _, record, _ in runs]
        for phase in PHASE_COLOURS
    }
    names = [name for name, _, _ in runs]
    stack(left, names, phases, unit=" ms", colours=PHASE_COLOURS, room=1.25)
    label(
        left,
        "where a step's time goes",
        size=11,
        xlabel="milliseconds per step: medians of its phases",
    )
    losses = {name: (steps["step"], steps["loss"]) for name, _, steps in runs if "loss" in steps}
    lines(right, losses, colours=(GREY, ACCENT) if len(runs) > 1 else ACCENT, marker="o")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(right, "loss", size=11, xlabel="training step")
    if losses:
        right.margins(y=0.35)  # room for the legend: two runs that compute the same have one line
        right.legend(frameon=False, fontsize=9)
    legend(picture, 5, PHASE_COLOURS)
    return picture


def plot_learning_curves(
    tables: Mapping[str, pd.DataFrame], panels: Sequence[tuple[str, str]]
) -> Picture:
    """Plot means over seeds per epoch, with bands from the lowest to the highest seed.

    Args:
        tables: by the line's name: one row per epoch and seed, with its machine.
        panels: the columns for x and y of each panel.
    """
    picture = Picture(9.5, 3.8)
    for axes, (x, y) in zip(picture.panels(1, len(panels)), panels):
        seeds = {name: table.groupby("epoch") for name, table in tables.items()}
        means = {name: (epochs[x].first(), epochs[y].mean()) for name, epochs in seeds.items()}
        bands = {name: (epochs[y].min(), epochs[y].max()) for name, epochs in seeds.items()}
        lines(axes, means, bands=bands, styles=("-", "--", "-.", ":"))
        label(axes, LEARNING_LABELS[y], size=10, xlabel=LEARNING_LABELS[x], ylim=(0, None))
        if x == "epoch":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            axes.set_xscale("log")
    machines = dict.fromkeys(name for table in tables.values() for name in table["machine"])
    heading(picture, "\n".join(machines))
    legend(picture, 6)
    return picture
