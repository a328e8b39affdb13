"""Pictures of small updates, of residuals that fall or do not, and of what it brings on a GPU."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    FORMAT_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Picture,
    clean,
    words_on,
)
from course.text import digits

WAY_COLOURS = {
    "alone": ACCENT,
    "with a carry": BLUE,
    "rounded by chance": ORANGE,
    "fp32 master": DARK,
}
WAY_STYLES = {"fp32 master": "--"}
EASY, HARD = 0.12, 0.9  # of the colour map, from the smallest condition number to the largest
FP64_FLOOR = 1.6e-15  # √200 times fp64's roundoff, where the lab's refinement ends
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16")


def added(tables: dict[str, pd.DataFrame]) -> Picture:
    """A weight over its updates, stored in each way (tables of `refinement.adding`, by format)."""
    picture = Picture(10, 3.3, "a weight over 1,000 updates of 0.0001, " + _ends(tables))
    panels = picture.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, (name, table) in zip(panels, tables.items()):
        for way in table:
            style = WAY_STYLES.get(way, "-")
            axes.plot(table.index, table[way], color=WAY_COLOURS[way], ls=style, lw=1.8, label=way)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("updates of 0.0001")
        clean(axes)
    panels[0].set_ylabel("weight")
    panels[-1].legend(frameon=False, fontsize=9)
    return picture


def _ends(tables: dict[str, pd.DataFrame]) -> str:
    told = []
    for name, table in tables.items():
        last = table.iloc[-1]
        told.append(f"{name}: " + ", ".join(f"{way} {last[way]:.3f}" for way in table))
    return "; ".join(told)


def learned(table: pd.DataFrame) -> Picture:
    """The loss of a training, weights stored in each way (a table of `learned_in_bf16`)."""
    smooth = table.rolling(25, min_periods=1).mean()
    ends = ", ".join(f"{way} {loss:.2f}" for way, loss in smooth.iloc[-1].items())
    picture = Picture(9, 3, f"loss over {len(table)} steps; at the end: {ends}")
    axes = picture.add_subplot()
    for way in smooth:
        axes.plot(
            smooth.index,
            smooth[way],
            color=WAY_COLOURS[way],
            ls=WAY_STYLES.get(way, "-"),
            lw=2,
            label=way,
        )
    axes.set_title("bf16 weights, learning handwritten digits", loc="left", fontsize=10)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (mean of 25 steps)")
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    clean(axes)
    return picture


def residuals(*tables: pd.DataFrame) -> Picture:
    """How backward errors fall, correction by correction: a panel a table of `convergence`."""
    picture = Picture(10, 3.8, "; ".join(map(_falls, tables)))
    panels = picture.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, table in zip(panels, tables):
        for row, hue in zip(table.itertuples(), _hues(len(table))):
            power = round(math.log10(row.condition))
            axes.plot(
                row.residuals,
                "o-" if row.done else "x:",
                color=hue,
                ms=4,
                lw=1.6,
                label=f"10$^{{{power}}}$",
            )
        axes.axhline(FP64_FLOOR, color=GREY, lw=0.8, ls=":")
        axes.set_yscale("log")
        axes.set_title(f"{table['precision'][0]}, {table['way'][0]}", loc="left", fontsize=10)
        axes.set_xlabel("corrections")
        clean(axes)
    panels[0].set_ylabel("residual, relative (dotted: fp64's)")
    handles, labels = panels[0].get_legend_handles_labels()
    picture.legend(
        handles,
        labels,
        title="condition\nnumber",
        loc="outside right upper",
        frameon=False,
        fontsize=9,
    )
    return picture


def _hues(count: int) -> list[tuple[float, ...]]:
    colours = matplotlib.colormaps["viridis"]
    return [colours(place) for place in np.linspace(EASY, HARD, count)]


def _falls(table: pd.DataFrame) -> str:
    good = table.loc[table["done"], "condition"]
    best = f"up to condition number {good.max():.0e}" if len(good) else "nowhere"
    return f"{table['precision'][0]}, {table['way'][0]}: refinement reaches fp64 {best}"


def border(*tables: pd.DataFrame) -> Picture:
    """Where refinement works: rows are formats and ways, columns condition numbers.

    A cell says how many solutions by the factors it took; crossed out: it did not get there.
    """
    picture = Picture(10, 0.9 + 0.42 * len(tables), "; ".join(map(_falls, tables)))
    axes = picture.add_subplot()
    for place, table in enumerate(tables):
        for column, row in enumerate(table.itertuples()):
            hue = FORMAT_COLOURS[row.precision] if row.done else GREY
            box = Rectangle((column - 0.47, place - 0.42), 0.94, 0.84, color=hue, lw=0)
            box.set_alpha(1 if row.done else 0.25)
            axes.add_patch(box)
            said = str(row.inner or row.corrections) if row.done else "✗"
            ink = words_on(hue) if row.done else DARK
            axes.text(column, place, said, ha="center", va="center", color=ink, fontsize=9)
    names = [f"{table['precision'][0]}, {table['way'][0]}" for table in tables]
    axes.set_yticks(range(len(tables)), names)
    powers = [round(math.log10(each)) for each in tables[0]["condition"]]
    axes.set_xticks(range(len(powers)), [f"10$^{{{power}}}$" for power in powers])
    axes.set(xlim=(-0.6, len(powers) - 0.4), ylim=(len(tables) - 0.5, -0.5))
    axes.set_xlabel("condition number; in the cell: solutions by the rough factors")
    clean(axes)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return picture


def on_gpu(table: pd.DataFrame) -> Picture:
    """Times fp64's speed over the size, and over the condition number (of `recorded`)."""
    by_size = table[(table["matrix"] == "easy") & (table["by"] == "cuSOLVER")]
    by_condition = table[table["matrix"] == "given"]
    picture = Picture(10, 3.6, f"solutions on {table['machine'].iloc[0]}: {_fastest(by_size)}")
    left, right = picture.subplots(1, 2)
    _lines(left, by_size, "size")
    left.set_title(f"{table['machine'].iloc[0]}\nκ below 5", loc="left", fontsize=10)
    left.set(xlabel="size of the matrix", ylabel="times as fast as fp64")
    left.set_xscale("log", base=2)
    sizes = sorted(by_size["size"].unique())
    left.set_xticks(sizes, [digits(each) for each in sizes])
    left.legend(frameon=False, fontsize=9)
    _lines(right, by_condition, "condition")
    right.set_xscale("log")
    right.set_title("size 8,192", loc="left", fontsize=10)
    right.set_xlabel("condition number (hollow: given up, then fp64)")
    for axes in (left, right):
        axes.axhline(1, color=GREY, lw=0.8, ls=":")
        axes.set_ylim(bottom=0)
        clean(axes)
    return picture


def _lines(axes: Axes, table: pd.DataFrame, across: str) -> None:
    colours = FORMAT_COLOURS | {"fp64": DARK, "fp32": SKY, "tf32": GREEN}
    for precision in PRECISIONS:
        rows = table[table["precision"] == precision].sort_values(across)
        colour = colours[precision]
        axes.plot(rows[across], rows["speedup"], "-", color=colour, lw=1.8, label=precision)
        for gave_up, face in ((False, colour), (True, "white")):
            some = rows[(rows["corrections"] < 0) == gave_up]
            axes.plot(some[across], some["speedup"], "o", color=colour, mfc=face, ms=5)


def _fastest(table: pd.DataFrame) -> str:
    largest = table[table["size"] == table["size"].max()].set_index("precision")
    told = (f"{name} {digits(largest.loc[name, 'speedup'])}" for name in largest.index)
    return f"times as fast as fp64 at size {largest['size'].iloc[0]:,}: {', '.join(told)}"
