"""Pictures of formats: an image's cost, the order of an epoch, a disk, and who feeds the GPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Picture,
    clean,
    stacked_bar,
)
from course.text import digits
from course.topics.formats.stages import STAGES

STAGE_COLOURS = dict(zip(STAGES, (GREY, ACCENT, ORANGE)))
FEW = 0.06  # of the longest bar: shorter pieces have no room for words


def costs(table: pd.DataFrame, title: str = "one core of this machine") -> Picture:
    """Milliseconds of one core for an image, stage by stage, a bar a format.

    Args:
        table: what `costs` returns.
    """
    picture = Picture(9.5, 1.3 + 0.45 * len(table))
    axes = picture.add_subplot()
    longest = table["ms"].max()
    for place, (_, row) in enumerate(table.iterrows()):
        pieces = [
            (stage, row[stage], colour, f"{row[stage]:.1f}" if row[stage] > FEW * longest else "")
            for stage, colour in STAGE_COLOURS.items()
        ]
        end = stacked_bar(axes, place, pieces, height=0.62)
        said = f"  {digits(row['images_per_s'])} images/s, {row['kb']:.0f} kB each"
        axes.text(end, place, said, va="center", fontsize=9)
    axes.set_yticks(range(len(table)), table.index)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * longest)
    axes.set_xlabel("milliseconds of one core for one image")
    axes.set_title(title, loc="left", fontsize=9)
    picture.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    clean(axes)
    return picture


def orders(found: Mapping[str, np.ndarray]) -> Picture:
    """A dot an image: when it comes in the epoch, and where it lies in the files.

    Args:
        found: what `orders` returns.
    """
    picture = Picture(10.5, 3.1)
    grid = picture.subplots(1, len(found), sharey=True)
    for axes, (name, places) in zip(np.atleast_1d(grid), found.items()):
        axes.plot(places, ".", color=BLUE, ms=1.2, alpha=0.7)
        axes.set_title(name, loc="left", fontsize=9.5)
        axes.set_xlabel("place in the epoch")
        clean(axes)
    np.atleast_1d(grid)[0].set_ylabel("place in the files")
    return picture


def disk(table: pd.DataFrame, folder: str = "") -> Picture:
    """Images a second that a disk gives, in each way, cold and warm; the axis is logarithmic.

    Args:
        table: what `measure_disk` returns.
    """
    ways = [*dict.fromkeys(table["way"])]
    picture = Picture(9.5, 1.2 + 0.6 * len(ways))
    axes = picture.add_subplot()
    for offset, cache, colour in ((-0.19, "cold", SKY), (0.19, "warm", ORANGE)):
        rows = table[table["cache"] == cache].set_index("way")
        for way, row in rows.iterrows():
            place = ways.index(way) + offset
            axes.barh(place, row["images_per_s"], height=0.36, color=colour)
            said = f" {digits(row['images_per_s'])} images/s, {digits(row['mb_per_s'])} MB/s"
            axes.text(row["images_per_s"], place, said, va="center", fontsize=9)
        if len(rows):
            axes.barh([0], [0], color=colour, label=cache)
    axes.set_xscale("log")
    low, high = table["images_per_s"].min(), table["images_per_s"].max()
    axes.set_xlim(low / 3, high * 12)
    axes.set_yticks(range(len(ways)), ways)
    axes.invert_yaxis()
    axes.set_xlabel("images a second (logarithmic)")
    axes.set_title(folder, loc="left", fontsize=9)
    picture.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    clean(axes)
    return picture


def fed(table: pd.DataFrame, eats: float, title: str = "") -> Picture:
    """What a GPU trains from each format, beside what it trains when images cost nothing.

    Args:
        table: rows of `loading.trials`, with run, workers and images_per_s.
        eats: images/s on synthetic data.
    """
    picture = Picture(9.5, 1.2 + 0.42 * len(table))
    axes = picture.add_subplot()
    for place, row in enumerate(table.itertuples()):
        axes.barh(place, row.images_per_s, color=BLUE, height=0.64)
        said = f"{digits(row.images_per_s)}: {row.images_per_s / eats:.0%}  "
        inside = {"va": "center", "ha": "right", "color": "white", "fontsize": 9}
        axes.text(row.images_per_s, place, said, **inside)
    names = [
        f"{row.run.removesuffix(f'-{row.workers}')}, {row.workers} workers"
        for row in table.itertuples()
    ]
    axes.axvline(eats, color=GREEN, lw=1.6, ls="--", label=f"synthetic: {digits(eats)}")
    axes.set_yticks(range(len(table)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.06 * eats)
    axes.set_xlabel("images/s, of all measured steps together")
    axes.set_title(title, loc="left", fontsize=9)
    picture.legend(loc="outside lower center", frameon=False, fontsize=9)
    clean(axes)
    return picture


def losses(runs: Mapping[str, pd.DataFrame]) -> Picture:
    """The training loss of runs, step by step.

    Args:
        runs: `run.steps` of each, by the name to show.
    """
    picture = Picture(9.5, 3.4)
    axes = picture.add_subplot()
    for (name, steps), colour in zip(runs.items(), (BLUE, ACCENT, DARK)):
        axes.plot(steps["step"], steps["loss"], color=colour, lw=1.5, label=name)
    axes.set(xlabel="training step", ylabel="loss")
    axes.set_ylim(0)
    picture.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    clean(axes)
    return picture
