"""Figures of formats: an image's cost, an epoch's order, a file system, and the GPU's speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from course.charts import (
    ACCENT,
    BLUE,
    GREY,
    ORANGE,
    SKY,
    Picture,
    describe,
    label,
    legend,
    mark,
    stack,
    strip,
)
from course.lab import digits
from labs.formats.formats import STAGES


def plot_core_costs(table: pd.DataFrame) -> Picture:
    """Draw the milliseconds of one core per image, by stage and format (from `core_costs`)."""
    picture = Picture(9.5, 1.3 + 0.45 * len(table))
    axes = picture.panel()
    words = list(
        table["ms"].map("{:.2f} ms: ".format)
        + table["images_per_s"].map(digits)
        + table["kb"].map(" images/s, {:.0f} kB each".format)
    )
    look = {"inside": "{value:.1f}", "colours": (GREY, ACCENT, ORANGE), "room": 1.5}
    stack(axes, list(table.index), {stage: table[stage] for stage in STAGES}, words=words, **look)
    label(axes, "one core of this machine", xlabel="milliseconds of one core for one image")
    legend(picture)
    return picture


def plot_readers(shards: int = 8, workers: int = 4) -> Picture:
    """Draw which shards each worker reads, without a rule and divided, one panel each."""
    picture = Picture(10.5, 0.9 + 0.35 * workers)
    grid = picture.panels(1, 2, sharey=True)
    titles = (f"no rule: each shard is read {workers}×", "divided: each shard is read once")
    for axes, title, step in zip(grid, titles, (1, workers)):
        rows = {}
        for worker in range(workers):
            read = range(worker % step, shards, step)
            rows[f"worker {worker}"] = [
                (BLUE, str(shard)) if shard in read else (GREY + "40", "")
                for shard in range(shards)
            ]
        strip(axes, rows)
        label(axes, title, size=9.5)
    return picture


def plot_epoch_orders(orders: Mapping[str, Sequence[int]]) -> Picture:
    """Draw a dot per image: its position in the epoch and in the files.

    Args:
        orders: by name, the position in the files of each image, in the epoch's order.
    """
    picture = Picture(10.5, 3.1)
    grid = picture.panels(1, len(orders), sharey=True)
    for axes, (name, places) in zip(grid, orders.items()):
        axes.plot(places, ".", color=BLUE, ms=1.2, alpha=0.7)
        label(axes, name, size=9.5, xlabel="position in the epoch")
    grid[0].set_ylabel("position in the files")
    return picture


def plot_shared_files(table: pd.DataFrame) -> Picture:
    """Draw the images per second of one reader over a network (from `shared_files`)."""
    names = {"images_per_s": "over the network", "local_images_per_s": "from memory"}
    speeds = table[[*names]].rename(columns=names)
    picture = Picture(9.5, 1.2 + 0.6 * len(speeds))
    axes = picture.panel()
    for (name, speed), shift, colour in zip(speeds.items(), (-0.18, 0.18), (SKY, ORANGE)):
        words = speed.map(digits) + " images/s"
        axes.plot(speed, np.arange(len(speed)) + shift, "o", color=colour, ms=8, label=name)
        for place, (value, text) in enumerate(zip(speed, words)):
            mark(axes, value, place + shift, f"  {text}")
        describe(axes, name, [f"{way}: {text}" for way, text in words.items()])
    axes.set_yticks(range(len(speeds)), speeds.index)
    axes.set_ylim(len(speeds) - 0.5, -0.5)
    axes.grid(axis="y", alpha=0.3)
    limits = (speeds.min(axis=None) / 3, speeds.max(axis=None) * 12)
    title = f"recorded {table['date'].iloc[0]}: {table['machine'].iloc[0]}"
    label(axes, title, xlabel="images/s (logarithmic)", xscale="log", xlim=limits)
    legend(picture)
    return picture


def plot_format_speeds(table: pd.DataFrame, synthetic: float, title: str = "") -> Picture:
    """Draw the images/s that a GPU trains from each format, and the gap to synthetic images.

    Args:
        table: rows of `trials`, with run, workers and images_per_s.
        synthetic: images/s on synthetic data.
    """
    picture = Picture(9.5, 1.2 + 0.42 * len(table))
    axes = picture.panel()
    names = [
        f"{row.run.removesuffix(f'-{row.workers}')}, {row.workers} workers"
        for row in table.itertuples()
    ]
    speed = table["images_per_s"]
    missing = (synthetic - speed).clip(0)
    parts = {"trained": speed, f"missing to {digits(synthetic)} on synthetic images": missing}
    look = {"inside": "{value:,.0f}: {share:.0%}", "least": 0.1, "colours": (BLUE, GREY)}
    stack(axes, names, parts, words=[""] * len(table), room=1.03, **look)
    label(axes, title, xlabel="images/s over all measured steps")
    legend(picture)
    return picture
