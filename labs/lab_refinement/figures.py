"""Figures of iterative refinement, and of its speed on a GPU."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex

from course.charts.base import DARK, FORMAT_COLOURS, GREY, PALE, SKY, Picture
from course.charts.primitives import describe, label, legend, limit, lines, scatter_fit, strip
from course.text import digits
from labs.lab_refinement.solvers import target_error

PRECISION_COLOURS = FORMAT_COLOURS | {"fp64": DARK, "fp32": SKY}
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16")


def plot_convergence(*tables: pd.DataFrame) -> Picture:
    """Draw backward errors over corrections, a panel for each table of `solve_by_condition`."""
    picture = Picture(10, 4)
    for axes, table in zip(picture.panels(1, len(tables), sharey=True), tables):
        for row, shade in zip(table.itertuples(), np.linspace(0.12, 0.9, len(table))):
            colour, style = to_hex(colormaps["viridis"](shade)), "-" if row.converged else ":"
            axes.plot(row.residuals, style, marker=".", color=colour, label=_power(row.condition))
        axes.set_yscale("log")
        limit(axes, target_error(200), colour=GREY)
        label(axes, _name(table), size=10, xlabel="corrections; by condition number")
        largest = table.loc[table["converged"], "condition"].max()  # NaN: none converged
        describe(axes, "", [f"reaches fp64 up to condition number {largest:.0e}"])
    picture.axes[0].set_ylabel("residual, relative (dashed: fp64's)")
    legend(picture, 10)
    return picture


def plot_convergence_table(*tables: pd.DataFrame) -> Picture:
    """Draw a row for each format and method, and a column for each condition number.

    A cell has the number of solutions with the factors; ✗: refinement did not converge.
    """
    picture = Picture(10, 0.9 + 0.42 * len(tables))
    axes, rows = picture.panel(), {}
    for table in tables:
        colour = FORMAT_COLOURS[table["precision"].iloc[0]]
        rows[_name(table)] = [
            (colour, f"{row.gmres_iterations or row.corrections}") if row.converged else (PALE, "✗")
            for row in table.itertuples()
        ]
    strip(axes, rows, size=9)
    conditions = tables[0]["condition"]
    axes.set_xticks(np.arange(len(conditions)) + 0.46, map(_power, conditions))
    label(axes, xlabel="condition number; in the cell: solutions with the rough factors")
    return picture


def _name(table: pd.DataFrame) -> str:
    return f"{table['precision'].iloc[0]}, {table['method'].iloc[0]}"


def _power(number: float) -> str:
    return f"10$^{{{round(math.log10(number))}}}$"


def plot_gpu_speedup(table: pd.DataFrame) -> Picture:
    """Draw the speedup over fp64 by size and by condition number (from `load_measurements`)."""
    picture = Picture(10, 3.8)
    left, right = picture.panels(1, 2)
    by_size = table.query("matrix == 'easy'")
    by_condition = table.query("matrix == 'given'")
    for axes, rows, column in ((left, by_size, "size"), (right, by_condition, "condition")):
        for precision in PRECISIONS:
            curve = rows[rows["precision"] == precision].sort_values(column)
            colour, failed = PRECISION_COLOURS[precision], curve.query("corrections < 0")
            lines(axes, {precision: (curve[column], curve["speedup"])}, colours=colour, marker=".")
            crosses = {"": (failed[column], failed["speedup"])}
            scatter_fit(axes, crosses, colours=colour, markers="x", hollow=True)
        axes.set(xscale="log", ylim=(0, None))
    sizes = sorted(by_size["size"].unique())
    left.set_xticks(sizes, map(digits, sizes))
    left.minorticks_off()
    title = f"{table['machine'].iloc[0]}\nκ below 5"
    label(left, title, size=10, xlabel="size of the matrix", ylabel="times as fast as fp64")
    label(right, "size 8,192", size=10, xlabel="condition number (cross: given up, then fp64)")
    legend(picture, 5)
    return picture
