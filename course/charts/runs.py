"""Pictures of runs: the ladder, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    PHASE_COLOURS,
    Picture,
    clean,
    stacked_bar,
)
from course.runs.record import Record
from course.text import digits


def ladder(table: pd.DataFrame, beside: pd.DataFrame | None = None) -> Picture:
    """Images per second, rung by rung, with quartiles and the ratio to the first rung.

    A rung that several machines ran stands with their names.

    Args:
        table: what `report.ladder_table` or `course.recorded` returns.
        beside: the same of another machine, to be drawn under it at a scale of its own.
    """
    tables = [table, *([] if beside is None else [beside])]
    tables = [each[each["images_per_s"].notna()] for each in tables]
    heights = [1.1 + 0.55 * max(len(each), 1) for each in tables]
    picture = Picture(8.5, sum(heights))
    panels = picture.subplots(len(tables), height_ratios=heights, squeeze=False)[:, 0]
    for axes, each in zip(panels, tables):
        _ladder(axes, each)
    return picture


def _ladder(axes: Axes, table: pd.DataFrame) -> None:
    elsewhere = table.groupby("rung")["machine"].transform("nunique") > 1
    names = table["rung"].mask(elsewhere, table["rung"] + "\n" + table["machine"].str[:20])
    places = np.arange(len(table))
    speed = table["images_per_s"]
    spread = np.array([speed - table["images_per_s_q1"], table["images_per_s_q3"] - speed])
    colours = [GREY, *["#0072B2"] * len(table)][: len(table)]
    axes.barh(places, speed, xerr=spread, color=colours, height=0.62, ecolor=DARK, capsize=3)
    edge = table["images_per_s_q3"].max() if len(table) else 1
    for place, row in zip(places, table.itertuples()):
        memory = f", {row.peak_gib:.1f} GiB" if pd.notna(row.peak_gib) else ""
        text = f"{digits(row.images_per_s)} images/s = {digits(row.ratio)}×{memory}"
        if other := getattr(row, "same_as", ""):  # it did not run
            text = f"the same computation as {other}"
        axes.text(row.images_per_s_q3 + edge * 0.015, place, text, va="center", fontsize=9)
    axes.set_yticks(places, names)
    axes.set_xlim(0, edge * 1.48)
    axes.invert_yaxis()
    axes.set_xlabel("images per second: median, with quartiles")
    setups = dict.fromkeys(table["machine"] + ", " + table["setup"])
    axes.set_title("\n".join(setups), loc="left", fontsize=9)
    clean(axes)


def climbed(table: pd.DataFrame, machine: str, recorded: str) -> Picture:
    """A learner's ladder: each rung against the one before (left), beside a recorded GPU's.

    Args:
        table: of `course.labs.ladder.Ladder`.
        machine: where the learner measured; "": nothing yet.
        recorded: the other machine, and what it trained on.
    """
    picture = Picture(10.5, 1.5 + 0.5 * len(table))
    own, other = picture.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _climbed(own, table)
    own.set_title(f"yours: {machine or 'nothing measured yet'}", loc="left", fontsize=9)
    speed = table["recorded_images_per_s"]
    other.barh(table.index, speed.fillna(0), color=GREEN, height=0.6)
    edge = speed.max()
    for place, each in speed.dropna().items():
        before = speed.get(place - 1, np.nan)
        times = f", {digits(each / before)}×" if pd.notna(before) else ""
        on_cpu = ", by its CPU" * (table.loc[place, "recorded_on"] == "CPU")
        words = f"{digits(each)} images/s{on_cpu}{times}"
        other.text(each + edge * 0.02, place, words, va="center", fontsize=9)
    for place in speed.index[speed.isna()]:
        other.text(edge * 0.02, place, f"from files: lab {table.loc[place, 'lab']}", va="center")
    other.set_xlim(0, edge * 1.75)
    other.set_xlabel("images per second")
    other.set_title(recorded, loc="left", fontsize=9)
    other.invert_yaxis()
    clean(other)
    return picture


def _climbed(axes: Axes, table: pd.DataFrame) -> None:
    """Ratios to the rung before as bars, predictions as open diamonds."""
    first = pd.Series([1.0] + [np.nan] * (len(table) - 1))
    ratio = table["ratio"].astype(float).fillna(first.where(table["images_per_s"].notna()))
    predicted = table["predicted"].astype(float)
    colours = [GREY, *[BLUE] * len(table)][: len(table)]
    axes.barh(table.index, ratio.fillna(0), color=colours, height=0.6)
    spread = np.array([ratio - table["low"], table["high"] - ratio], dtype=float)
    axes.errorbar(ratio, table.index, xerr=spread, fmt="none", ecolor=DARK, capsize=3)
    axes.plot(predicted, table.index, "D", mfc="none", mec=ACCENT, mew=1.6, ms=8, label="you said")
    edge = np.nanmax([1.0, *ratio, *predicted, *table["high"].astype(float)])
    for place, row in table.iterrows():
        far = np.nanmax([0.0, ratio[place], predicted[place], float(row["high"])])
        axes.text(far + edge * 0.05, place, _rung_words(row), va="center", fontsize=9)
    axes.set_yticks(table.index, table["rung"])
    axes.set_xlim(0, edge * 1.6)
    axes.set_xlabel("times the images per second of the rung before")
    if predicted.notna().any():
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    clean(axes)


def _rung_words(row: pd.Series) -> str:
    if pd.isna(row["images_per_s"]):
        return f"not yet: lab {row['lab']}"
    if pd.isna(row["ratio"]):
        return f"{digits(row['images_per_s'])} images/s"
    return f"{digits(row['ratio'])}×"


def step_and_loss(runs: Sequence[tuple[str, Record, pd.DataFrame]]) -> Picture:
    """Where a step's time goes (left) and whether the loss stays the same (right).

    Args:
        runs: (name, record, steps) of each run, the one to compare with first.
    """
    picture = Picture(10, 1.9 + 0.5 * len(runs))
    left, right = picture.subplots(1, 2, width_ratios=(3, 2))
    _step_bars(left, runs)
    colours = [ACCENT] if len(runs) == 1 else [GREY, ACCENT]
    for (name, _, steps), colour in zip(runs, colours):
        if "loss" in steps:
            right.plot(steps["step"], steps["loss"], "o-", ms=3, lw=1.5, color=colour, label=name)
    right.set_xlabel("training step")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_title("loss", loc="left", fontsize=11)
    if right.lines:
        right.margins(y=0.35)  # room for the names: two runs that compute the same lie together
        right.legend(frameon=False, fontsize=9)
    clean(right)
    return picture


def _step_bars(axes: Axes, runs: Sequence[tuple[str, Record, pd.DataFrame]]) -> None:
    for place, (_, record, _) in enumerate(runs):
        phases = [
            (phase, (getattr(record, f"{phase}_s") or 0) * 1e3, colour, "")
            for phase, colour in PHASE_COLOURS.items()
        ]
        end = stacked_bar(axes, place, phases, height=0.6)
        axes.text(end, place, f"  {digits(end)} ms", va="center", fontsize=9)
    axes.set_yticks(range(len(runs)), [name for name, _, _ in runs])
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds of one step: medians of its phases")
    axes.set_title("where a step's time goes", loc="left", fontsize=11)
    axes.legend(ncols=5, frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.32))
    clean(axes)
