"""Figures of formats: an image's cost, the order of an epoch, a disk, and what feeds the GPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from course.charts.base import ACCENT, BLUE, DARK, GREY, ORANGE, SKY, Picture
from course.charts.primitives import bars, label, legend, lines, stack
from course.text import digits
from labs.day3_1_formats.stages import STAGES


def plot_costs(table: pd.DataFrame, title: str = "one core of this machine") -> Picture:
    """Draw the milliseconds of one core for an image, by stage and format (a table of `costs`)."""
    picture = Picture(9.5, 1.3 + 0.45 * len(table))
    axes = picture.panel()
    words = [
        f"{digits(row['images_per_s'])} images/s, {row['kb']:.0f} kB each"
        for _, row in table.iterrows()
    ]
    look = {"inside": "{value:.1f}", "colours": (GREY, ACCENT, ORANGE), "room": 1.4}
    stack(axes, list(table.index), {each: table[each] for each in STAGES}, words=words, **look)
    label(axes, title, xlabel="milliseconds of one core for one image")
    legend(picture)
    return picture


def plot_orders(places: Mapping[str, np.ndarray]) -> Picture:
    """Draw a dot per image: its place in the epoch, and in the files (see `formats.orders`)."""
    picture = Picture(10.5, 3.1)
    grid = picture.panels(1, len(places), sharey=True)
    for axes, (name, order) in zip(grid, places.items()):
        axes.plot(order, ".", color=BLUE, ms=1.2, alpha=0.7)
        label(axes, name, size=9.5, xlabel="place in the epoch")
    grid[0].set_ylabel("place in the files")
    return picture


def plot_disk(table: pd.DataFrame, folder: str = "") -> Picture:
    """Draw a disk's images per second, cold and warm (a table of `measure_disk`)."""
    ways = list(table["way"].unique())
    picture = Picture(9.5, 1.2 + 0.6 * len(ways))
    axes = picture.panel()
    speeds, words = {}, {}
    for cache, rows in table.groupby("cache"):
        rows = rows.set_index("way").loc[ways]
        speeds[cache] = rows["images_per_s"]
        rates = rows["images_per_s"].map(digits) + " images/s, "
        words[cache] = list(rates + rows["mb_per_s"].map(digits) + " MB/s")
    colours = [{"cold": SKY, "warm": ORANGE}[cache] for cache in speeds]
    bars(axes, ways, speeds, words=words, colours=colours)
    low, high = table["images_per_s"].min(), table["images_per_s"].max()
    ends = {"xscale": "log", "xlim": (low / 3, high * 12)}
    label(axes, folder, xlabel="images a second (logarithmic)", **ends)
    legend(picture)
    return picture


def plot_fed(table: pd.DataFrame, eats: float, title: str = "") -> Picture:
    """Draw what a GPU trains from each format, and what is missing to synthetic images.

    Args:
        table: rows of `loading.trials`, with run, workers and images_per_s.
        eats: images/s on synthetic data.
    """
    picture = Picture(9.5, 1.2 + 0.42 * len(table))
    axes = picture.panel()
    names = [
        f"{row.run.removesuffix(f'-{row.workers}')}, {row.workers} workers"
        for row in table.itertuples()
    ]
    speed = table["images_per_s"]
    missing = (eats - speed).clip(0)
    parts = {"trained": speed, f"missing to {digits(eats)} on synthetic images": missing}
    look = {"inside": "{value:,.0f}: {share:.0%}", "least": 0.1, "colours": (BLUE, GREY)}
    stack(axes, names, parts, words=[""] * len(table), room=1.03, **look)
    label(axes, title, xlabel="images/s, of all measured steps together")
    legend(picture)
    return picture


def plot_losses(runs: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw the training loss of runs (`run.steps` by the name to show), step by step."""
    picture = Picture(9.5, 3.4)
    axes = picture.panel()
    curves = {name: (steps["step"], steps["loss"]) for name, steps in runs.items()}
    lines(axes, curves, colours=(BLUE, ACCENT, DARK))
    label(axes, xlabel="training step", ylabel="loss", ylim=(0, None))
    legend(picture)
    return picture
