"""Figures of memory strategies: what fills the memory, micro-batches, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from course.charts import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    bars,
    describe,
    heading,
    label,
    legend,
    lines,
    mark,
    stack,
)
from course.lab import digits
from course.training import memory_prediction
from labs.saving_memory.measurements import on_pareto_front

KINDS = {
    "all kept": BLUE,
    "micro-batches": SKY,
    "recomputed": ORANGE,
    "both": GREEN,
    "offloaded": DARK,
}
TIMELINE_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
PARTS = {
    "weights_gib": "weights",
    "gradients_gib": "gradients",
    "optimizer_gib": "optimizer state",
    "gathered_gib": "gathered weights",
    "activations_gib": "activations",
    "other_gib": "batch, and workspace of backward",
}
PART_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)


def plot_memory_parts(predictions: Mapping[str, Any]) -> Picture:
    """Draw what fills the memory at its peak, a bar for each prediction of peak memory."""
    picture = Picture(10, 1.1 + 0.55 * len(predictions))
    axes = picture.panel()
    parts = {
        title: [getattr(prediction, field, 0) for prediction in predictions.values()]
        for field, title in PARTS.items()
    }
    stack(axes, list(predictions), parts, unit=" GiB", colours=PART_COLOURS, room=1.12)
    label(axes, xlabel="GiB, predicted")
    legend(picture, len(PARTS))
    return picture


def plot_timelines(timelines: Mapping[str, pd.DataFrame], unit: str = "GiB") -> Picture:
    """Draw the memory of forward and backward after each operator, by name.

    The optimizer's operators are left out: they hardly change the memory.

    Args:
        timelines: tables with the columns phase, and gib or kib (the unit); see `memory_timeline`.
    """
    picture = Picture(10, 3.8)
    axes = picture.panel()
    for (name, table), colour in zip(timelines.items(), TIMELINE_COLOURS):
        table = table[table["phase"] != "optimizer"]
        used, number = table[unit.lower()], int((table["phase"] == "forward").sum())
        lines(axes, {name: (range(len(used)), used)}, colours=colour)
        axes.plot(number, used[number], "o", color=colour, ms=6)
        peak = int(used.idxmax())
        mark(axes, peak, used[peak], f"{digits(used[peak])} {unit}", "above", colour=colour)
        values = (f"{digits(value)} {unit}" for value in (used[peak], used[number]))
        describe(axes, name, ["peak {}, when backward begins {}".format(*values)])
    axes.plot([], [], "o", color=DARK, label="backward begins")
    label(
        axes,
        xlabel="operators of forward and backward, in the order in which they run",
        ylabel=f"{unit} in use",
    )
    axes.set(
        ylim=(0, 1.15 * max(table[unit.lower()].max() for table in timelines.values())),
        xlim=(0, None),
    )
    legend(picture, 4)
    return picture


def plot_micro_batches(table: pd.DataFrame, machine: str) -> Picture:
    """Draw images/s and milliseconds per pass, by images in one pass.

    Args:
        table: rows of `memory_strategies` that differ only in their micro-batch.
    """
    table = table.sort_values("micro_batch")
    picture = Picture(10, 3.6)
    left, right = picture.panels(1, 2)
    sizes = list(table["micro_batch"])
    bars(left, sizes, table["images_per_s"], colours=BLUE, upright=True, room=1.1)
    label(left, "images per second", size=10, xlabel="images in one pass")
    pass_ms = table["pass_s"] * 1e3
    lines(right, {"": (range(len(table)), pass_ms)}, colours=ACCENT, marker="o")
    for place, value in enumerate(pass_ms):
        mark(right, place, value, digits(value), "above")
    label(right, "milliseconds per pass", size=10, xlabel="images in one pass")
    right.set(xticks=range(len(table)), xticklabels=sizes, ylim=(0, 1.2 * pass_ms.max()))
    heading(picture, machine)
    return picture


def plot_pareto_front(table: pd.DataFrame, machine: str) -> Picture:
    """Draw images/s over GiB: a dot per strategy, and a line through the Pareto front.

    Args:
        table: from `memory_strategies`.
    """
    table = table[table["status"] == "ok"].sort_values("peak_gib")
    picture = Picture(10, 5.2)
    axes = picture.panel()
    front = table[on_pareto_front(table)]
    axes.step(front["peak_gib"], front["images_per_s"], where="post", color=GREY, lw=1.2, zorder=1)
    for row in table.itertuples():
        x, y = row.peak_gib, row.images_per_s
        axes.plot(x, y, "o", color=KINDS[_kind(row.strategy)], ms=8, zorder=2)
        name = row.strategy.replace(" recomputed", "")
        name = f"{row.batch_size} per pass" if name == memory_prediction.NO_STRATEGY else name
        # The names of dots that are close to each other alternate; off the front, none is above its
        # dot, where it could cross the front.
        close = table["peak_gib"].between(x - 6, x, "left") & table["images_per_s"].between(
            y - 25, y + 25
        )
        above = 5 if row.Index in front.index else -3
        shift, ha = (7, above if close.sum() % 2 else -11), "left"
        if row.Index in front.index and x > 0.2 * table["peak_gib"].max():
            shift, ha = (-7, 5), "right"  # there is room above the front
        look = {"textcoords": "offset points", "fontsize": 8, "color": DARK, "ha": ha}
        axes.annotate(name, (x, y), shift, **look)
    legend_settings = {"frameon": False, "fontsize": 9, "loc": "lower right"}
    for kind, colour in KINDS.items():
        axes.bar(0, 0, color=colour, label=kind)
    axes.legend(**legend_settings)
    axes.set(xlabel="GiB at the peak", ylabel="images per second", xlim=(0, None))
    axes.set_ylim(0, 1.1 * table["images_per_s"].max())
    heading(picture, machine)
    return picture


def _kind(strategy: str) -> str:
    """Return the kind of a strategy, which sets its colour."""
    if "offloaded" in strategy:
        return "offloaded"
    if "recomputed" in strategy:
        return "both" if "per pass" in strategy else "recomputed"
    return "micro-batches" if "per pass" in strategy else "all kept"
