"""Figures of small updates, of residuals that fall or do not, and of their speed on a GPU."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    FORMAT_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    SKY,
    Picture,
)
from course.charts.primitives import describe, label, legend, limit, lines, scatter_fit, strip
from course.text import digits

WAY_COLOURS = {
    "alone": ACCENT,
    "with a carry": BLUE,
    "rounded by chance": ORANGE,
    "fp32 master": DARK,
}
FP64_FLOOR = 1.6e-15  # √200 times fp64's roundoff, where the lab's refinement ends
PRECISION_COLOURS = {"fp64": DARK, "fp32": SKY, "tf32": GREEN} | {
    name: FORMAT_COLOURS[name] for name in ("bf16", "fp16")
}


def plot_ways(tables: dict[str, pd.DataFrame], across: str, up: str) -> Picture:
    """Draw what comes of weights that are stored in each way: a column each, a panel a table.

    Args:
        tables: of `refinement.adding`, or of `learned_in_bf16`, by their title.
        across, up: words at the axes.
    """
    picture = Picture(10, 3.5)
    for axes, (name, table) in zip(picture.panels(1, len(tables), sharey=True), tables.items()):
        curves = {way: (table.index, table[way]) for way in table}
        # fp32's may be on the others.
        styles = ["--" if way == "fp32 master" else "-" for way in table]
        lines(axes, curves, colours=[WAY_COLOURS[way] for way in table], styles=styles)
        label(axes, name, size=10, xlabel=across)
    picture.axes[0].set_ylabel(up)
    legend(picture, 4)
    return picture


def plot_residuals(*tables: pd.DataFrame) -> Picture:
    """Draw how backward errors fall, correction by correction: a panel a table of `convergence`."""
    picture = Picture(10, 4)
    for axes, table in zip(picture.panels(1, len(tables), sharey=True), tables):
        for row, shade in zip(table.itertuples(), np.linspace(0.12, 0.9, len(table))):
            colour, style = to_hex(colormaps["viridis"](shade)), "-" if row.done else ":"
            axes.plot(row.residuals, style, marker=".", color=colour, label=_power(row.condition))
        axes.set_yscale("log")
        limit(axes, FP64_FLOOR, colour=GREY)
        label(axes, _name(table), size=10, xlabel="corrections; by condition number")
        largest = table.loc[table["done"], "condition"].max()  # NaN: none is reached
        describe(axes, "", [f"reaches fp64 up to condition number {largest:.0e}"])
    picture.axes[0].set_ylabel("residual, relative (dashed: fp64's)")
    legend(picture, 10)
    return picture


def plot_border(*tables: pd.DataFrame) -> Picture:
    """Draw where refinement works: rows are formats and ways, columns condition numbers.

    A cell has the number of solutions by the factors that it took; ✗: it did not get there.
    """
    picture = Picture(10, 0.9 + 0.42 * len(tables))
    axes = picture.panel()
    rows = {}
    for table in tables:
        colour = FORMAT_COLOURS[table["precision"].iloc[0]]
        rows[_name(table)] = [
            (colour, f"{row.inner or row.corrections}") if row.done else (PALE, "✗")
            for row in table.itertuples()
        ]
    strip(axes, rows, size=9)
    conditions = tables[0]["condition"]
    axes.set_xticks(np.arange(len(conditions)) + 0.46, map(_power, conditions))
    label(axes, xlabel="condition number; in the cell: solutions by the rough factors")
    return picture


def _name(table: pd.DataFrame) -> str:
    return f"{table['precision'].iloc[0]}, {table['way'].iloc[0]}"


def _power(number: float) -> str:
    return f"10$^{{{round(math.log10(number))}}}$"


def plot_on_gpu(table: pd.DataFrame) -> Picture:
    """Draw times fp64's speed over the size, and over the condition number (of `recorded`)."""
    picture = Picture(10, 3.8)
    left, right = picture.panels(1, 2)
    by_size = table[(table["matrix"] == "easy") & (table["by"] == "cuSOLVER")]
    by_condition = table[table["matrix"] == "given"]
    for axes, rows, across in ((left, by_size, "size"), (right, by_condition, "condition")):
        for precision, colour in PRECISION_COLOURS.items():
            of = rows[rows["precision"] == precision].sort_values(across)
            lines(axes, {precision: (of[across], of["speedup"])}, colours=colour, marker=".")
            gave_up = of[of["corrections"] < 0]
            if len(gave_up):
                points = {"": (gave_up[across], gave_up["speedup"])}
                scatter_fit(axes, points, colours=colour, markers="x", hollow=True)
        axes.set(xscale="log", ylim=(0, None))
    sizes = sorted(by_size["size"].unique())
    left.set_xticks(sizes, map(digits, sizes))
    left.minorticks_off()
    title = f"{table['machine'].iloc[0]}\nκ below 5"
    label(left, title, size=10, xlabel="size of the matrix", ylabel="times as fast as fp64")
    label(right, "size 8,192", size=10, xlabel="condition number (cross: given up, then fp64)")
    legend(picture, 5)
    return picture
