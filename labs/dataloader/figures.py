"""Figures of loading: waiting and computing, the cost of an image, the cores needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course.charts import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    Picture,
    label,
    legend,
    limit,
    lines,
    scatter_fit,
    stack,
)
from course.lab import digits

LOAD, COMPUTING = "waiting for the batch", "computing"
STEP_COLOURS = {LOAD: ORANGE, COMPUTING: BLUE}


def plot_waiting(
    runs: Sequence[tuple[str, pd.DataFrame]],
    warmup_steps: int | Sequence[int] = 0,
    waiting: str = LOAD,
) -> Picture:
    """Draw each step as a bar: waiting for its batch below, computing above it.

    Args:
        runs: (name, steps) of each run, for instance `run.steps`.
        warmup_steps: drawn pale, because times leave them out; of all runs, or one of each.
        waiting: what a step does before computing, for the legend.
    """
    picture = Picture(9.5, 1.0 + 1.55 * len(runs))
    grid = picture.panels(len(runs), sharex=True, sharey=True)
    warmups = [warmup_steps] * len(runs) if isinstance(warmup_steps, int) else warmup_steps
    for axes, (name, steps), warmup in zip(grid, runs, warmups):
        load, step = steps["load_s"] * 1e3, steps["step_s"] * 1e3
        for warm in (True, False):
            rows = (steps["step"] < warmup) == warm
            look = {"width": 0.85, "alpha": 0.35 if warm else 1.0}
            places = steps["step"][rows]
            axes.bar(places, load[rows], color=ORANGE, **look)
            axes.bar(places, (step - load)[rows], bottom=load[rows], color=BLUE, **look)
        for border in steps.groupby("epoch")["step"].min():
            limit(axes, border - 0.5, colour=DARK, along="x")
        label(axes, name, size=10)
    # The first steps pay for starting and may be much taller than all others: cut them.
    highest_s = max(steps["step_s"][warmup:].max() for (_, steps), warmup in zip(runs, warmups))
    grid[0].set_ylim(0, 1.15e3 * highest_s)
    grid[-1].set_xlabel("training step (pale: warm-up, may be cut off; dashed: start of an epoch)")
    grid[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    picture.supylabel("milliseconds", fontsize=10)
    legend(picture, 2, {waiting: ORANGE, COMPUTING: BLUE})
    return picture


def plot_trials(table: pd.DataFrame) -> Picture:
    """Draw the mean step of each trial: waiting and computing, with images/s and host memory.

    Args:
        table: from `loading.trials`.
    """
    table = table[table["step_ms"].notna()]
    picture = Picture(9.5, 1.3 + 0.42 * max(len(table), 1))
    axes = picture.panel()
    times = (table["load_ms"], table["step_ms"] - table["load_ms"])
    memory = table["host_gib"].map(lambda gib: f", {gib:.2f} GiB" if pd.notna(gib) else "")
    words = list(table["images_per_s"].map(digits) + " images/s" + memory)
    look = {"words": words, "colours": STEP_COLOURS, "room": 1.3}
    stack(axes, list(table["run"]), dict(zip(STEP_COLOURS, times)), **look)
    label(
        axes,
        "\n".join(dict.fromkeys(table["machine"])),
        xlabel="mean milliseconds per step; memory of the training process and its workers",
    )
    legend(picture, 2)
    return picture


def plot_decoding(profiles: dict[str, pd.DataFrame]) -> Picture:
    """Draw how long one core works on one image, stage by stage, one bar per profile.

    Args:
        profiles: from `loading.decode_profile`, by the name to show.
    """
    picture = Picture(9.5, 1.5 + 0.5 * len(profiles))
    axes = picture.panel()
    stages = pd.concat(profiles).reset_index().pivot(index="stage", columns="level_0", values="ms")
    stages = stages.loc[next(iter(profiles.values()))["stage"], list(profiles)]
    words = [f"{ms:.1f} ms: {digits(1e3 / ms)} images/s per core" for ms in stages.sum()]
    look = {"inside": "{share:.0%}", "least": 0.07, "room": 1.4}
    stack(axes, list(profiles), dict(stages.iterrows()), words=words, **look)
    label(axes, xlabel="milliseconds per image on one core")
    legend(picture, 7)
    return picture


def plot_cores_needed(
    speeds: pd.DataFrame,
    core_speed: float,
    cores: int,
    measured: pd.DataFrame | None = None,
    title: str = "",
) -> Picture:
    """Draw the images/s that cores load and that each rung trains; where they cross, it is fed.

    Args:
        speeds: from `loading.training_speeds`.
        core_speed: images/s that one core loads.
        cores: the machine's number of cores.
        measured: trials to add as points.
    """
    picture = Picture(9.5, 4.6)
    axes = picture.panel()
    top = speeds["images_per_s"].max() * 1.12
    most = max(top / core_speed, cores * 1.1)
    supply = f"supply: {digits(core_speed)} images/s per core"
    lines(axes, {supply: ([0, most], [0, most * core_speed])}, colours=ORANGE)
    _rung_lines(axes, speeds, core_speed, top, most)
    limit(axes, cores, f"this machine has {cores} cores", along="x")
    if measured is not None:
        rows = measured[measured["workers"] > 0]
        points = {"measured, by number of workers": (rows["workers"], rows["images_per_s"])}
        scatter_fit(axes, points, colours=GREEN, markers="D")
    frame = {"xlabel": "cores that load images", "ylabel": "images per second"}
    label(axes, title, xlim=(0, most), ylim=(0, top), **frame)
    legend(picture, 3)
    return picture


def _rung_lines(
    axes: Axes, speeds: pd.DataFrame, core_speed: float, top: float, most: float
) -> None:
    """Draw a line from the left to the supply for each rung, with words beyond the right edge."""
    height = -np.inf
    for row in speeds.itertuples():
        needed, speed = row.images_per_s / core_speed, row.images_per_s
        height = max(speed, height + top * 0.052)  # so that words do not overlap
        axes.plot([0, needed], [speed] * 2, color=BLUE, lw=1)
        axes.plot(needed, speed, "o", color=BLUE, ms=4)
        axes.annotate(
            f"{row.rung} {row.precision}: {digits(speed)}, {np.ceil(needed):.0f} cores",
            (needed, speed),
            (most * 1.03, height),
            va="center",
            fontsize=8.5,
            arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.6},
        )
