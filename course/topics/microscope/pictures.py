"""Pictures of what decides a product's speed: shapes, tiles, waves, formats, clocks."""

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
    clean,
)
from course.text import digits
from course.topics.microscope.given import waves, widest_load
from course.topics.microscope.known import BYTES
from course.topics.microscope.names import family

LOADS = {16: GREEN, 8: SKY, 4: ORANGE, 2: ACCENT, 1: PURPLE}
MAP = "cividis"  # light is fast; people with colour-blindness see it as others do


def channels(*tables: pd.DataFrame) -> Picture:
    """TFLOP/s of a convolution over channels, coloured by the widest load (`known.channels`)."""
    picture = Picture(10, 3.4, "; ".join(_loads_told(table) for table in tables))
    for axes, table in zip(np.atleast_1d(picture.subplots(1, len(tables))), tables):
        axes.plot(table["channels"], table["tflop_per_s"], "-", color=GREY, lw=0.8)
        for load, rows in table.groupby("load"):
            style = {"color": LOADS[load], "label": f"{load} bytes"}
            axes.plot(rows["channels"], rows["tflop_per_s"], "o", ms=5, **style)
        first = table.iloc[0]
        axes.set_title(f"{first['precision']}, {first['layout']}", loc="left", fontsize=10)
        axes.set_xlabel("channels, in and out")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=9, title="widest load")
        clean(axes)
    picture.axes[0].set_ylabel("TFLOP/s")
    picture.suptitle(_machine(tables[0]), fontsize=9, x=0.01, ha="left")
    return picture


def _loads_told(table: pd.DataFrame) -> str:
    told = ", ".join(
        f"{load} bytes {digits(rows.min())} to {digits(rows.max())}"
        for load, rows in table.groupby("load")["tflop_per_s"]
    )
    return f"TFLOP/s in {table['precision'].iloc[0]}, by the widest load: {told}"


def near(table: pd.DataFrame) -> Picture:
    """A map of TFLOP/s, one by one around a size: K upwards, N to the right; and by widest load."""
    grid = table.pivot(index="k", columns="n", values="tflop_per_s")
    best, worst = grid.max().max(), grid.min().min()
    middle, dtype = int(table["k"].median()), table["dtype"].iloc[0]
    alt = f"TFLOP/s over K and N around {middle:,}: from {digits(worst)} to {digits(best)}"
    picture = Picture(10, 4.4, alt)
    left, right = picture.subplots(1, 2, width_ratios=[1.15, 1])
    shown = left.imshow(grid, origin="lower", cmap=MAP, aspect="auto")
    every = range(0, len(grid), 4)
    left.set_xticks(every, [f"{grid.columns[at]:,}" for at in every])
    left.set_yticks(every, [f"{grid.index[at]:,}" for at in every])
    left.set(xlabel=f"N, in {dtype}", ylabel="K")
    picture.colorbar(shown, ax=left, label="TFLOP/s")
    _by_load(right, table)
    picture.suptitle(_machine(table), fontsize=9, x=0.01, ha="left")
    return picture


def _by_load(axes: Axes, table: pd.DataFrame) -> None:
    """Each product's speed, by the narrowest of its rows' widest loads."""
    loads = by_load(table, BYTES[table["dtype"].iloc[0]])
    chance = np.random.default_rng(0)
    for place, load in enumerate(sorted(loads["load"].unique())):
        speeds = loads.loc[loads["load"] == load, "tflop_per_s"]
        places = place + chance.uniform(-0.25, 0.25, len(speeds))
        axes.plot(places, speeds, ".", color=LOADS[load], ms=5)
        middle = speeds.median()
        axes.plot([place - 0.3, place + 0.3], [middle, middle], color=DARK, lw=1.5)
    told = [
        "\n".join([str(load), *_families(rows), digits(rows["tflop_per_s"].median())])
        for load, rows in loads.groupby("load")
    ]
    axes.set_xticks(range(len(told)), told)
    axes.set_xlabel("bytes of the widest load for K and N; kernel; median")
    axes.set_ylim(bottom=0)
    axes.set_title("each point a product", loc="left", fontsize=10)
    clean(axes)


def _families(table: pd.DataFrame) -> list[str]:
    """Which kernels they are, without doubles, and for whom each was written."""
    found = dict.fromkeys(family(each) for each in table["kernel"])
    return [word for each in found for word in each.split(", ") if word]


def by_load(table: pd.DataFrame, itemsize: int = 2) -> pd.DataFrame:
    """The table with `load`: the widest that both K's and N's rows allow, in bytes."""
    load = [
        min(widest_load(k, itemsize), widest_load(n, itemsize))
        for k, n in zip(table["k"], table["n"])
    ]
    return table.assign(load=load)


def far(table: pd.DataFrame) -> Picture:
    """A map of TFLOP/s in large steps: K by factors of two, N in steps of 256."""
    grid = table.pivot(index="k", columns="n", values="tflop_per_s")
    top = grid.max().max()
    where = table.loc[table["tflop_per_s"].idxmax()]
    alt = f"TFLOP/s over K and N: at most {digits(top)}, at K = {where['k']:,}, N = {where['n']:,}"
    picture = Picture(10, 3.6, alt)
    axes = picture.add_subplot()
    shown = axes.imshow(grid, origin="lower", cmap=MAP, aspect="auto")
    wide = [at for at, n in enumerate(grid.columns) if n % 1024 == 0]
    axes.set_xticks(wide, [f"{grid.columns[at]:,}" for at in wide])
    axes.set_yticks(range(len(grid)), [f"{k:,}" for k in grid.index])
    axes.set(xlabel="N", ylabel="K")
    axes.set_title(
        f"{_machine(table)}: M = 4,096, {table['dtype'].iloc[0]}", loc="left", fontsize=10
    )
    picture.colorbar(shown, ax=axes, label="TFLOP/s")
    return picture


def line(table: pd.DataFrame, units: int = 132) -> Picture:
    """TFLOP/s over N, coloured by the kernel's tile; it falls where a wave is begun."""
    rows = table.sort_values("n")
    tiles = rows["tile"].replace("", "not named").value_counts()
    named = list(tiles.index[:4])
    told = ", ".join(f"{tile} ({count})" for tile, count in tiles.items())
    picture = Picture(10, 4.4, f"TFLOP/s over N; tiles of the kernels: {told}")
    upper, lower = picture.subplots(2, 1, sharex=True, height_ratios=[1.4, 1])
    colours = dict(zip(named, (BLUE, ORANGE, GREEN, PURPLE)))
    upper.plot(rows["n"], rows["tflop_per_s"], "-", color=GREY, lw=0.8)
    for tile, each in rows.groupby(rows["tile"].replace("", "not named"), sort=False):
        hue, label = colours.get(tile, GREY), tile if tile in colours else None
        upper.plot(each["n"], each["tflop_per_s"], "o", color=hue, ms=4, label=label)
    upper.set_ylabel("TFLOP/s")
    upper.legend(frameon=False, fontsize=9, ncols=4, title="tile of the kernel", loc="upper right")
    upper.set_ylim(top=1.12 * rows["tflop_per_s"].max())
    _filled(lower, rows, units)
    upper.set_title(_machine(rows), loc="left", fontsize=10)
    lower.set_xlabel("N, of 4,096 × 4,096 times 4,096 × N")
    lower.xaxis.set_major_formatter("{x:,.0f}")
    clean(upper)
    clean(lower)
    return picture


def _filled(axes: Axes, rows: pd.DataFrame, units: int) -> None:
    """Percent of the multiprocessors' turns that have a tile."""
    kept = rows[rows["tile"] != ""]
    axes.plot(kept["n"], 100 * filled(kept, units), ".-", color=DARK, lw=0.8, ms=4)
    axes.set_ylabel("% of turns filled")


def filled(table: pd.DataFrame, units: int = 132) -> pd.Series:
    """Which share of all turns of the multiprocessors has a tile, in the rows that name theirs."""
    shares = {}
    for at, row in table.iterrows():
        if not row["tile"]:
            continue
        tall, wide = (int(each) for each in row["tile"].split(" x "))
        turns = waves(row["n"], row["m"], (tall, wide), units)
        shares[at] = row["m"] * row["n"] / (tall * wide) / units / turns
    return pd.Series(shares, dtype=float)


SIDES = {"M": BLUE, "N": ORANGE, "K": GREEN}


def odd(table: pd.DataFrame) -> Picture:
    """How much of an even product's speed is left with one odd side, by format (`record.odd`)."""
    share = 100 * table[[*SIDES]].div(table["none"], axis=0)
    told = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{side} {value:.0f}" if value == value else f"{side} refused"
            for side, value in row.items()
        )
        for name, row in share.iterrows()
    )
    picture = Picture(10, 3.4, f"percent of the even product's speed, by the odd side. {told}")
    axes, places = picture.add_subplot(), np.arange(len(share))
    for at, (side, hue) in enumerate(SIDES.items()):
        where = places + 0.27 * (at - 1)
        bars = axes.bar(where, share[side].fillna(0), 0.25, color=hue, label=f"{side} = 4,097")
        words = [f"{each:.0f}" if each == each else "refused" for each in share[side]]
        for bar, word in zip(bars, words):
            how = {"rotation": 90, "va": "bottom"} if word == "refused" else {"va": "bottom"}
            at_x = bar.get_x() + bar.get_width() / 2
            axes.text(at_x, bar.get_height() + 2, word, ha="center", fontsize=9, color=DARK, **how)
    axes.set_xticks(places, share.index)
    axes.set_title(_machine(table), loc="left", fontsize=10)
    axes.set(ylabel="% of the even product", ylim=(0, 135))
    axes.legend(frameon=False, fontsize=9, ncols=3, loc="upper left")
    clean(axes)
    return picture


def largest(table: pd.DataFrame) -> Picture:
    """The largest rate found in each format beside the data sheet's, and that of zeros."""
    rows = table.iloc[::-1]
    told = ", ".join(
        f"{row.Index} {digits(row.tflop_per_s)} of {digits(row.published)}, "
        f"zeros {digits(row.zeros_tflop_per_s)}"
        for row in table.itertuples()
    )
    picture = Picture(9, 0.9 + 0.42 * len(rows), f"TFLOP/s found, of the data sheet's: {told}")
    axes = picture.add_subplot()
    places = np.arange(len(rows))
    colours = [FORMAT_COLOURS.get(name, SKY) for name in rows.index]
    axes.barh(places, rows["published"], 0.7, color="none", edgecolor=GREY, label="data sheet")
    bars = axes.barh(places, rows["tflop_per_s"], 0.7, color=colours)
    for bar, row in zip(bars, rows.itertuples()):
        middle = bar.get_y() + bar.get_height() / 2
        share = f": {row.share:.0%}" if row.share == row.share else ""
        label = f" {digits(row.tflop_per_s)}{share}"
        axes.text(
            np.fmax(row.published, row.tflop_per_s),
            middle,
            label,
            va="center",
            fontsize=9,
            color=DARK,
        )
    axes.set_yticks(places, rows.index)
    axes.set_xlim(0, 1.2 * rows[["published", "tflop_per_s"]].max().max())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    zeros = {"color": DARK, "ls": "none", "ms": 13, "mew": 1.5}
    axes.plot(rows["zeros_tflop_per_s"], places, "|", **zeros)
    axes.set_xlabel("TFLOP/s: found (bar), with zeros (stroke), data sheet (frame)")
    axes.set_title(_machine(table), loc="left", fontsize=10)
    clean(axes)
    return picture


def _machine(table: pd.DataFrame) -> str:
    return table["machine"].iloc[0]
