"""Figures of what decides a product's speed: shapes, tiles, waves, formats, clocks."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    FORMAT_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
)
from course.charts.primitives import bars, describe, heading, label, legend, lines, scatter_fit
from course.text import digits
from labs.lab_microscope.names import family
from labs.lab_microscope.other_sources import BYTES
from labs.lab_microscope.solutions import waves, widest_load

LOADS = {16: GREEN, 8: SKY, 4: ORANGE, 2: ACCENT, 1: PURPLE}
SIDE_COLOURS = {"M": BLUE, "N": ORANGE, "K": GREEN}
TILE_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)


def plot_channels(*tables: pd.DataFrame) -> Picture:
    """Draw TFLOP/s of a convolution over channels, coloured by the widest load.

    Args:
        tables: of `known.channels`, a panel each.
    """
    picture = Picture(10, 3.6)
    for axes, table in zip(picture.panels(1, len(tables)), tables):
        axes.plot(table["channels"], table["tflop_per_s"], color=GREY, lw=0.8)
        for load, rows in table.groupby("load"):
            points = {f"widest load: {load} bytes": (rows["channels"], rows["tflop_per_s"])}
            scatter_fit(axes, points, colours=LOADS[load], size=5)
        title = f"{table['precision'].iloc[0]}, {table['layout'].iloc[0]}"
        label(axes, title, size=10, xlabel="channels, in and out", ylim=(0, None))
    picture.axes[0].set_ylabel("TFLOP/s")
    legend(picture, 4)
    heading(picture, tables[0]["machine"].iloc[0])
    return picture


def plot_near(table: pd.DataFrame) -> Picture:
    """Draw a map of TFLOP/s, one by one around a size; and TFLOP/s by the widest load."""
    picture = Picture(10, 4.4)
    left, right = picture.panels(1, 2, width_ratios=[1.15, 1])
    _map(left, table, columns=slice(None, None, 4), rows=slice(None, None, 4))
    _by_load(right, table)
    heading(picture, table["machine"].iloc[0])
    return picture


def plot_far(table: pd.DataFrame) -> Picture:
    """Draw a map of TFLOP/s in large steps: K by factors of two, N in steps of 256."""
    picture = Picture(10, 3.6)
    _map(picture.panel(), table, columns=slice(3, None, 4), rows=slice(None))
    heading(picture, table["machine"].iloc[0])
    return picture


def _map(axes: Axes, table: pd.DataFrame, columns: slice, rows: slice) -> None:
    """Draw TFLOP/s as colours: K upwards, N to the right, with numbers at some columns and rows."""
    grid = table.pivot(index="k", columns="n", values="tflop_per_s")
    # Cividis: light is fast, for people with colour-blindness, too.
    shown = axes.imshow(grid, origin="lower", cmap="cividis", aspect="auto")
    axes.figure.colorbar(shown, ax=axes, label="TFLOP/s")
    across, up = (np.arange(each) for each in grid.T.shape)
    axes.set_xticks(across[columns], map("{:,}".format, grid.columns[columns]))
    axes.set_yticks(up[rows], map("{:,}".format, grid.index[rows]))
    first, best = table.iloc[0], table.loc[table["tflop_per_s"].idxmax()]
    label(axes, f"M = {first['m']:,}, {first['dtype']}", xlabel="N", ylabel="K")
    ends = f"from {digits(grid.min().min())} to {digits(grid.max().max())} TFLOP/s"
    describe(axes, "", [f"{ends}, at K = {best['k']:,} and N = {best['n']:,}"])


def _by_load(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the speed of each product, by the narrowest of its rows' widest loads."""
    itemsize = BYTES[table["dtype"].iloc[0]]
    sides = zip(table["k"], table["n"])
    loads = [min(widest_load(each, itemsize) for each in both) for both in sides]
    random, names = np.random.default_rng(0), []
    for place, (load, rows) in enumerate(table.groupby(loads)):
        speeds, middle = rows["tflop_per_s"], rows["tflop_per_s"].median()
        places = place + random.uniform(-0.25, 0.25, len(speeds))
        axes.plot(places, speeds, ".", color=LOADS[load], ms=5)
        axes.hlines(middle, place - 0.3, place + 0.3, DARK, lw=1.5)
        kernels = ", ".join(dict.fromkeys(family(each) for each in rows["kernel"])).split(", ")
        names.append("\n".join([str(load), *filter(None, dict.fromkeys(kernels)), digits(middle)]))
        describe(axes, "", [f"{load} bytes: median {digits(middle)} TFLOP/s"])
    axes.set_xticks(range(len(names)), names)
    words = "bytes of the widest load for K and N; kernel; median"
    label(axes, "each point a product", size=10, xlabel=words, ylim=(0, None))


def plot_line(table: pd.DataFrame) -> Picture:
    """Draw TFLOP/s over N, coloured by the kernel's tile; it falls where a wave begins."""
    rows = table.sort_values("n")
    picture = Picture(10, 4.4)
    upper, lower = picture.panels(2, 1, sharex=True, height_ratios=[1.4, 1])
    upper.plot(rows["n"], rows["tflop_per_s"], color=GREY, lw=0.8)
    common = rows["tile"][rows["tile"] != ""].value_counts().index[:4]
    tiles = rows["tile"].where(rows["tile"].isin(common), "others")
    for name, colour in zip([*common, "others"], TILE_COLOURS):
        of = rows[tiles == name]
        scatter_fit(upper, {name: (of["n"], of["tflop_per_s"])}, colours=colour, size=5)
    label(upper, "colour: tile of the kernel", size=10, ylabel="TFLOP/s")
    known = rows[rows["tile"] != ""]
    lines(lower, {"": (known["n"], 100 * filled(known))}, colours=DARK)
    label(lower, xlabel="N, of 4,096 × 4,096 times 4,096 × N", ylabel="% of turns filled")
    lower.xaxis.set_major_formatter("{x:,.0f}")
    legend(picture, 5)
    heading(picture, rows["machine"].iloc[0])
    return picture


def filled(table: pd.DataFrame, units: int = 132) -> pd.Series:
    """Return which share of the multiprocessors' turns has a tile, in rows that name theirs."""
    shares = {}
    for at, row in table.iterrows():
        if not row["tile"]:
            continue
        tall, wide = (int(each) for each in row["tile"].split(" x "))
        turns = waves(row["n"], row["m"], (tall, wide), units)
        shares[at] = row["m"] * row["n"] / (tall * wide) / units / turns
    return pd.Series(shares, dtype=float)


def plot_odd(table: pd.DataFrame) -> Picture:
    """Draw what is left of an even product's speed with one odd side, by format (`record.odd`)."""
    percent = (100 * table[[*SIDE_COLOURS]].div(table["none"], axis=0)).round()
    picture = Picture(9, 1.2 + 0.48 * len(percent))
    axes = picture.panel()
    series = {f"{side} = 4,097": percent[side] for side in SIDE_COLOURS}
    look = {"missing": "refused", "colours": [*SIDE_COLOURS.values()], "room": 1.1}
    bars(axes, percent.index, series, **look)
    label(axes, xlabel="% of the even product's speed")
    legend(picture)
    heading(picture, table["machine"].iloc[0])
    return picture


def plot_largest(table: pd.DataFrame) -> Picture:
    """Draw the largest rate found in each format, the data sheet's behind it, and that of zeros."""
    picture = Picture(9, 0.9 + 0.42 * len(table))
    axes = picture.panel()
    shares = table["share"].map(lambda each: "" if np.isnan(each) else f": {each:.0%}")
    colours = [FORMAT_COLOURS.get(name, SKY) for name in table.index]
    look = {"words": table["tflop_per_s"].map(digits) + shares, "pale": table["published"]}
    bars(axes, table.index, table["tflop_per_s"], colours=colours, **look)
    zeros = table["zeros_tflop_per_s"]
    axes.plot(zeros, range(len(zeros)), "|", color=DARK, ms=13, mew=1.5)
    for name, values in (("with zeros", zeros), ("data sheet", table["published"])):
        describe(axes, name, [f"{each} {digits(value)}" for each, value in values.items()])
    label(axes, xlabel="TFLOP/s: found (bar), with zeros (stroke), data sheet (pale)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    heading(picture, table["machine"].iloc[0])
    return picture
