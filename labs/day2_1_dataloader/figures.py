"""Figures of loading: waiting and computing, the cost of an image, the cores that it takes."""

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
    ORANGE,
    PURPLE,
    SKY,
    Picture,
)
from course.charts.primitives import label, legend, limit, lines, scatter_fit, stack
from course.text import digits

STAGE_COLOURS = (GREY, ACCENT, ORANGE, PURPLE, SKY, BLUE, GREEN)
STEP_COLOURS = {"waiting for the batch": ORANGE, "computing": BLUE}


def plot_waiting(runs: Sequence[tuple[str, pd.DataFrame]], warmup_steps: int = 0) -> Picture:
    """Draw each step as a bar: waiting for its batch below, computing above it.

    Args:
        runs: (name, steps) of each run, `run.steps` for instance.
        warmup_steps: drawn pale, as they are left out of every time.
    """
    picture = Picture(9.5, 1.0 + 1.55 * len(runs))
    grid = picture.panels(len(runs), sharex=True, sharey=True)
    for axes, (name, steps) in zip(grid, runs):
        _step_bars(axes, steps, warmup_steps)
        label(axes, name, size=10)
    # The first steps, which pay for starting, may be much taller than all others: they are cut.
    usual = [steps["step_s"][warmup_steps:].max() for _, steps in runs]
    grid[0].set_ylim(0, 1.15e3 * max(usual))
    grid[-1].set_xlabel("training step (pale: warm-up, may be cut; dashed: an epoch begins)")
    grid[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    picture.supylabel("milliseconds", fontsize=10)
    legend(picture, 2, STEP_COLOURS)
    return picture


def _step_bars(axes: Axes, steps: pd.DataFrame, warmup_steps: int) -> None:
    load, step = steps["load_s"] * 1e3, steps["step_s"] * 1e3
    for warm in (True, False):
        rows = (steps["step"] < warmup_steps) == warm
        look = {"width": 0.85, "alpha": 0.35 if warm else 1.0}
        for bottom, height, colour in zip((0 * load, load), (load, step - load), (ORANGE, BLUE)):
            axes.bar(steps["step"][rows], height[rows], bottom=bottom[rows], color=colour, **look)
    for border in steps.groupby("epoch")["step"].min():
        limit(axes, border - 0.5, colour=DARK, along="x")


def plot_trials(table: pd.DataFrame) -> Picture:
    """Draw the mean step of each trial: waiting and computing, with images/s and host memory.

    Args:
        table: what `feeding.trials` returns.
    """
    ran = table[table["step_ms"].notna()]
    picture = Picture(9.5, 1.3 + 0.42 * max(len(ran), 1))
    axes = picture.panel()
    parts = {"waiting for the batch": ran["load_ms"], "computing": ran["step_ms"] - ran["load_ms"]}
    memory = ran["host_gib"].map(lambda gib: f", {gib:.2f} GiB" if pd.notna(gib) else "")
    words = list(ran["images_per_s"].map(digits) + " images/s" + memory)
    stack(axes, list(ran["run"]), parts, words=words, colours=STEP_COLOURS, room=1.3)
    label(
        axes,
        "\n".join(dict.fromkeys(ran["machine"])),
        xlabel="milliseconds of a step, mean; memory of training process and workers",
    )
    legend(picture, 2)
    return picture


def plot_decoding(profiles: dict[str, pd.DataFrame]) -> Picture:
    """Draw the time that one core needs for one image, stage after stage, one bar per profile.

    Args:
        profiles: what `feeding.decode_profile` returns, by the name to show.
    """
    picture = Picture(9.5, 1.5 + 0.5 * len(profiles))
    axes = picture.panel()
    stages = pd.DataFrame({name: each.set_index("stage")["ms"] for name, each in profiles.items()})
    words = [f"{ms:.1f} ms: {digits(1e3 / ms)} images/s a core" for ms in stages.sum()]
    stack(
        axes,
        list(profiles),
        {stage: stages.loc[stage] for stage in next(iter(profiles.values()))["stage"]},
        words=words,
        inside="{share:.0%}",
        least=0.07,
        colours=STAGE_COLOURS,
        room=1.4,
    )
    label(axes, xlabel="milliseconds of one core for one image")
    legend(picture, 7)
    return picture


def plot_rule(
    appetites: pd.DataFrame,
    images_per_core: float,
    cores: int,
    measured: pd.DataFrame | None = None,
    title: str = "",
) -> Picture:
    """Draw what a number of cores supplies, and what each rung needs: enough where they cross.

    Args:
        appetites: rung, precision, images_per_s: what `feeding.appetites` returns.
        images_per_core: images that one core loads in a second.
        cores: that the machine has.
        measured: trials with workers and images_per_s, as points.
        title: of what machine the numbers are.
    """
    picture = Picture(9.5, 4.6)
    axes = picture.panel()
    top = appetites["images_per_s"].max() * 1.12
    most = max(top / images_per_core, cores * 1.1)
    supply = f"supply: {digits(images_per_core)} images/s a core"
    lines(axes, {supply: ([0, most], [0, most * images_per_core])}, colours=ORANGE)
    _appetite_lines(axes, appetites, images_per_core, top, most)
    limit(axes, cores, f"it has {cores} cores", along="x")
    if measured is not None and (measured["workers"] > 0).any():
        rows = measured[measured["workers"] > 0]
        points = {"measured, by number of workers": (rows["workers"], rows["images_per_s"])}
        scatter_fit(axes, points, colours=GREEN, markers="D")
    frame = {"xlabel": "cores that load", "ylabel": "images per second"}
    label(axes, title, xlim=(0, most), ylim=(0, top), **frame)
    legend(picture, 3)
    return picture


def _appetite_lines(
    axes: Axes, appetites: pd.DataFrame, images_per_core: float, top: float, most: float
) -> None:
    """Draw a line from the left to the supply for each rung, with words beyond the right edge."""
    for row, height in zip(appetites.itertuples(), _apart(appetites["images_per_s"], top)):
        needed = row.images_per_s / images_per_core
        axes.plot([0, needed], [row.images_per_s] * 2, color=BLUE, lw=1)
        axes.plot(needed, row.images_per_s, "o", color=BLUE, ms=4)
        speed, whole = digits(row.images_per_s), f"{np.ceil(needed):.0f} cores"
        axes.annotate(
            f"{row.rung} {row.precision}: {speed}, {whole}",
            (needed, row.images_per_s),
            (most * 1.03, height),
            va="center",
            fontsize=8.5,
            arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.6},
        )


def _apart(heights: pd.Series, top: float) -> list[float]:
    """The heights of labels (in order, lowest first), moved up where they would overlap."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + top * 0.052) if placed else height)
    return placed
