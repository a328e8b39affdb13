"""Figures of iterative refinement, and of its speed on a GPU."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex

from course.charts import (
    DARK,
    FORMAT_COLOURS,
    GREY,
    SKY,
    Picture,
    describe,
    heading,
    label,
    legend,
    limit,
    lines,
    scatter_fit,
)
from course.lab import digits
from electives.refinement.solvers import target_error

PRECISION_COLOURS = FORMAT_COLOURS | {"fp64": DARK, "fp32": SKY}
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16")


def plot_convergence(tables: dict[str, pd.DataFrame]) -> Picture:
    """Draw residuals over corrections, with a panel for each table of `solve_by_condition`."""
    picture = Picture(10, 4)
    panels = picture.panels(1, len(tables), sharex=True, sharey=True)
    for axes, (name, table) in zip(panels, tables.items()):
        for row, shade in zip(table.itertuples(), np.linspace(0.12, 0.9, len(table))):
            colour, style = to_hex(colormaps["viridis"](shade)), "-" if row.converged else ":"
            power = f"κ = 10$^{{{round(math.log10(row.condition))}}}$"
            axes.plot(row.residuals, style, marker=".", color=colour, label=power)
        axes.set_yscale("log")
        limit(axes, target_error(200), "fp64's accuracy", colour=GREY)
        label(axes, f"{name} factors", size=10, xlabel="corrections")
        largest = table.loc[table["converged"], "condition"].max()  # NaN: none converged
        describe(axes, "", [f"reaches fp64's accuracy up to κ = {largest:.0e}"])
    picture.axes[0].set_ylabel("relative residual")
    legend(picture, 6)
    return picture


def plot_gpu_speedup(table: pd.DataFrame) -> Picture:
    """Draw the speedup over fp64 by size and by condition number, from `load_measurements`."""
    picture = Picture(10, 3.8)
    left, right = picture.panels(1, 2)
    by_size = table.query("matrix == 'easy'")
    by_condition = table.query("matrix == 'given'")
    for axes, rows, column in ((left, by_size, "size"), (right, by_condition, "condition")):
        for precision in PRECISIONS:
            curve = rows[rows["precision"] == precision].sort_values(column)
            colour, failed = PRECISION_COLOURS[precision], curve.query("corrections < 0")
            style = "--" if precision == "fp16" else "-"  # it covers other lines
            points = {precision: (curve[column], curve["speedup"])}
            lines(axes, points, colours=colour, styles=(style,), marker=".")
            crosses = {"": (failed[column], failed["speedup"])}
            scatter_fit(axes, crosses, colours=colour, markers="x", hollow=True)
        axes.set(xscale="log", ylim=(0, None))
    sizes = sorted(by_size["size"].unique())
    left.set_xticks(sizes, map(digits, sizes))
    left.minorticks_off()
    heading(picture, table["machine"].iloc[0])
    label(left, "κ below 5", size=10, xlabel="rows of the matrix", ylabel="times as fast as fp64")
    xlabel = "condition number κ (cross: refinement failed, then fp64)"
    label(right, "8,192 rows", size=10, xlabel=xlabel)
    legend(picture, 5)
    return picture
