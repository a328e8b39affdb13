"""Pictures of loading: waiting beside computing, an image's cost, how many cores it takes."""

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
    clean,
    stacked_bar,
)
from course.text import digits

STAGE_COLOURS = (GREY, ACCENT, ORANGE, PURPLE, SKY, BLUE, GREEN)


def waiting(runs: Sequence[tuple[str, pd.DataFrame]], warmup_steps: int = 0) -> Picture:
    """Every step as a bar: waiting for its batch below, computing above; a line at each epoch.

    Args:
        runs: (name, steps) of each run, `run.steps` for instance.
        warmup_steps: drawn pale, as they are left out of every time.
    """
    picture = Picture(9.5, 1.0 + 1.55 * len(runs))
    grid = picture.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (name, steps) in zip(grid, runs):
        _step_bars(axes, steps, warmup_steps)
        axes.set_title(name, loc="left", fontsize=10)
    # First steps, which pay for starting, may be taller than all others by far: they are cut.
    usual = [(steps["load_s"] + _computing(steps))[warmup_steps:].max() for _, steps in runs]
    grid[0].set_ylim(0, 1.15e3 * max(usual))
    handles = grid[0].get_legend_handles_labels()
    picture.legend(*handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    grid[-1].set_xlabel("training step (pale: warm-up, may be cut; dashed: an epoch begins)")
    grid[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    picture.supylabel("milliseconds", fontsize=10)
    return picture


def _computing(steps: pd.DataFrame) -> pd.Series:
    return steps["step_s"] - steps["load_s"]


def _step_bars(axes: Axes, steps: pd.DataFrame, warmup_steps: int) -> None:
    load, computing = steps["load_s"] * 1e3, _computing(steps) * 1e3
    opacity = np.where(steps["step"] < warmup_steps, 0.35, 1.0)
    for bottom, height, colour, label in (
        (0 * load, load, ORANGE, "waiting for the batch"),
        (load, computing, BLUE, "computing"),
    ):
        bars = axes.bar(steps["step"], height, bottom=bottom, color=colour, width=0.85)
        for bar, alpha in zip(bars, opacity):
            bar.set_alpha(alpha)
        axes.bar(steps["step"].iloc[:1], [0], color=colour, label=label)  # not pale, in the legend
    for border in steps.groupby("epoch")["step"].min():
        axes.axvline(border - 0.5, color=DARK, lw=1, ls="--")
    clean(axes)


def trials(table: pd.DataFrame) -> Picture:
    """The mean step of each trial: waiting and computing, with images/s and host memory beside.

    Args:
        table: what `feeding.trials` returns.
    """
    there = table[table["step_ms"].notna()]
    picture = Picture(9.5, 1.3 + 0.42 * max(len(there), 1))
    axes = picture.add_subplot()
    places = np.arange(len(there))
    load, step = there["load_ms"], there["step_ms"]
    axes.barh(places, load, color=ORANGE, height=0.65, label="waiting for the batch")
    axes.barh(places, step - load, left=load, color=BLUE, height=0.65, label="computing")
    for place, row in zip(places, there.itertuples()):
        memory = f", {row.host_gib:.2f} GiB" if pd.notna(row.host_gib) else ""
        text = f" {digits(row.images_per_s)} images/s{memory}"
        axes.text(row.step_ms, place, text, va="center", fontsize=9)
    axes.set_yticks(places, there["run"], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, step.max() * 1.3 if len(step) else 1)
    axes.set_xlabel("milliseconds of a step, mean; memory of training process and workers")
    axes.legend(ncols=2, frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.99))
    axes.set_title("\n".join(dict.fromkeys(there["machine"])), loc="left", fontsize=9)
    clean(axes)
    return picture


def decoding(profiles: dict[str, pd.DataFrame]) -> Picture:
    """What one image costs a core, stage after stage, one bar a profile.

    Args:
        profiles: what `feeding.decode_profile` returns, by the name to show.
    """
    picture = Picture(9.5, 1.5 + 0.5 * len(profiles))
    axes = picture.add_subplot()
    for place, (_, profile) in enumerate(profiles.items()):
        stages = [
            (row.stage, row.ms, colour, f"{row.share:.0%}" if row.share > 0.07 else "")
            for colour, row in zip(STAGE_COLOURS, profile.itertuples())
        ]
        end = stacked_bar(axes, place, stages, height=0.6)
        said = f"  {end:.1f} ms: {digits(1e3 / end)} images/s a core"
        axes.text(end, place, said, va="center", fontsize=9)
    axes.set_yticks(range(len(profiles)), profiles)
    axes.invert_yaxis()
    axes.set_xlim(0, axes.get_xlim()[1] * 1.35)
    axes.set_xlabel("milliseconds of one core for one image")
    picture.legend(loc="outside lower center", ncols=7, frameon=False, fontsize=8.5)
    clean(axes)
    return picture


def rule(
    appetites: pd.DataFrame,
    images_per_core: float,
    cores: int,
    measured: pd.DataFrame | None = None,
    title: str = "",
) -> Picture:
    """What so many cores supply, against what each rung eats: where the lines cross, it is enough.

    Args:
        appetites: rung, precision, images_per_s: what `feeding.appetites` returns.
        images_per_core: images that one core loads in a second.
        cores: that the machine has.
        measured: trials with workers and images_per_s, as points.
        title: of what machine the numbers are.
    """
    picture = Picture(9.5, 4.6)
    axes = picture.add_subplot()
    top = appetites["images_per_s"].max() * 1.12
    most = max(top / images_per_core, cores * 1.1)
    axes.plot(
        [0, most],
        [0, most * images_per_core],
        color=ORANGE,
        lw=2.2,
        label=f"supply: {digits(images_per_core)} images/s a core",
    )
    _appetite_lines(axes, appetites, images_per_core, top, most)
    axes.axvline(cores, color=ACCENT, lw=1.2, ls="--", label=f"it has {cores} cores")
    if measured is not None:
        _measured_supply(axes, measured[measured["workers"] > 0])
    axes.set(xlim=(0, most), ylim=(0, top), xlabel="cores that load", ylabel="images per second")
    picture.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    axes.set_title(title, loc="left", fontsize=9)
    clean(axes)
    return picture


def _appetite_lines(
    axes: Axes, appetites: pd.DataFrame, images_per_core: float, top: float, most: float
) -> None:
    """A line from the left to the supply for each rung, and its words beyond the right edge."""
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


def _measured_supply(axes: Axes, trials: pd.DataFrame) -> None:
    if len(trials):
        said = "measured, by number of workers"
        axes.plot(trials["workers"], trials["images_per_s"], "D", color=GREEN, ms=6, label=said)


def _apart(heights: pd.Series, top: float) -> list[float]:
    """The heights of labels (in order, lowest first), moved up where they would overlap."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + top * 0.052) if placed else height)
    return placed
