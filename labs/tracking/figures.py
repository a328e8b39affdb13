"""Figures of runs side by side, of errors of energy counters, and of CO2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from course import Run
from course.charts import (
    BLUE,
    COLOURS,
    GREY,
    ORANGE,
    Picture,
    bars,
    describe,
    label,
    legend,
    lines,
    stack,
)
from course.lab import digits
from labs.tracking.tracking import settings_that_differ

MOST = len(COLOURS)  # runs in a dashboard
RESULTS = {
    "images_per_s": "images/s",
    "joules_per_image": "joules per image",
    "val_top1": "accuracy in validation",
}
PARTS = {"gpus": "GPUs", "host": "rest of the node", "building": "cooling and building"}


def plot_dashboard(runs: Sequence[Run]) -> Picture:
    """Draw the losses of runs, and their speed, energy and accuracy; of more than 8, the newest.

    A run is named by its settings that differ.
    """
    shown = sorted(runs, key=lambda run: run.record.started_at or "")[-MOST:]
    names = _names(shown)
    picture = Picture(10, 3.4 + 0.28 * len(shown))
    heights = [2.2, 1 + 0.28 * len(shown)]
    panels = picture.subplot_mosaic([["loss"] * len(RESULTS), [*RESULTS]], height_ratios=heights)
    for axes in panels.values():
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    curves = {name: _smoothed_loss(run) for name, run in zip(names, shown)}
    lines(panels["loss"], curves, colours=COLOURS)
    machines = "; ".join(dict.fromkeys(run.record.machine for run in shown))
    title = f"{len(shown)} of {len(runs)} runs; {machines}"
    label(panels["loss"], title, xlabel="step", ylabel="loss")
    for number, (field, words) in enumerate(RESULTS.items()):
        values = [getattr(run.record, field) for run in shown]
        numbers = [np.nan if value is None else value for value in values]
        ticks = names if number == 0 else [name.partition(":")[0] for name in names]
        style = {"colours": COLOURS, "room": 1.35, "missing": "not measured"}
        bars(panels[field], ticks, numbers, **style)
        panels[field].xaxis.set_major_locator(MaxNLocator(3))
        label(panels[field], words)
    return picture


def _names(runs: Sequence[Run]) -> list[str]:
    """Return a short, unique name for each run, from at most two settings that differ."""
    settings = settings_that_differ(runs).iloc[:, :2]
    rows = [
        ", ".join(f"{field}={digits(v) if isinstance(v, float) else v}" for field, v in row.items())
        for row in settings.to_dict("records")
    ]
    names = [name or run.config.rung for name, run in zip(rows, runs)]
    return [f"{number + 1}: {name}" for number, name in enumerate(names)]


def _smoothed_loss(run: Run) -> tuple[pd.Series, pd.Series]:
    """Return steps, and their losses averaged over a twentieth of the run."""
    steps = run.steps
    return steps["step"], steps["loss"].rolling(max(1, len(steps) // 20), min_periods=1).mean()


def plot_energy_errors(table: pd.DataFrame) -> Picture:
    """Draw how wrong a measured energy can be, by the length of the measurement."""
    picture = Picture(8, 3.2)
    axes = picture.panel()
    curves = {
        method: (table["seconds"], 100 * table[method])
        for method in ("between the ends", "between changes")
    }
    lines(axes, curves, colours=(ORANGE, BLUE), marker="o")
    label(axes, "a simulated counter", xlabel="seconds of measuring", ylabel="largest error, %")
    axes.set(xscale="log", yscale="symlog", ylim=(-0.5, 200))
    axes.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    axes.set_xticks(table["seconds"], [f"{value:g}" for value in table["seconds"]])
    axes.minorticks_off()
    legend(picture)
    return picture


def plot_run_comparison(table: pd.DataFrame, fields: Sequence[str]) -> Picture:
    """Draw the accuracy of many runs, the best on the left, with their settings below.

    A setting that goes along with accuracy changes from left to right: light cells are small
    numbers, dark ones large; words have a colour each.

    Args:
        table: from `runs_table`.
        fields: settings to show.
    """
    picture = Picture(10, 2 + 0.55 * len(fields))
    heights = [3, *([1] * len(fields))]
    above, *below = picture.panels(1 + len(fields), sharex=True, height_ratios=heights)
    accuracy = table["val_top1"]
    above.bar(range(len(table)), accuracy, width=1.0, color=BLUE)
    above.set_ylabel("val_top1", rotation=0, ha="right", va="center", fontsize=9)
    above.margins(x=0)
    describe(above, "", [f"from {accuracy.max():.3f} to {accuracy.min():.3f}"])
    for axes, field in zip(below, fields):
        values = table[field]
        if is_number := pd.api.types.is_numeric_dtype(values):
            low, high = values.min(), values.max()
            text = f"{digits(low)} … {digits(high)}"
            numbers = np.log(values) if low > 0 and high / low >= 20 else values
        else:
            numbers, kinds = pd.factorize(values)
            text = f"{len(kinds)} kinds"
        style = {"cmap": "viridis_r" if is_number else "tab10", "interpolation": "nearest"}
        axes.imshow(np.array([numbers], dtype=float), aspect="auto", **style)
        axes.set_yticks([0], [f"{field}\n{text}"], fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        describe(axes, field, [f"{text}, of the best run {values.iloc[0]}"])
    machine = "; ".join(table["machine"].unique())
    words = f"{len(table)} runs, the best on the left; light is small, dark is large\n{machine}"
    below[-1].set_xlabel(words, fontsize=9)
    return picture


def plot_grams(table: pd.DataFrame) -> Picture:
    """Draw the CO2 of the same energy on each grid (a table of `carbon_by_grid`)."""
    picture = Picture(10, 3.2)
    axes = picture.panel()
    parts = {words: table[part] for part, words in PARTS.items()}
    stack(axes, list(table["grid"]), parts, colours=(BLUE, ORANGE, GREY), room=1.08)
    label(axes, xlabel="grams of CO₂ equivalents (2023: Ember)")
    legend(picture)
    return picture
