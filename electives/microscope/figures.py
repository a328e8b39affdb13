"""Figures of what determines a product's speed: shapes, formats, clock rates."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.charts import (
    ACCENT,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    describe,
    heading,
    label,
    legend,
    stack,
)
from course.lab import digits
from electives.microscope.kernel_names import family
from electives.microscope.records import ITEMSIZE, widest_load

# Parts of the time in the Tensor Core picture: column, name in the legend, colour.
PARTS = (
    ("tensor_core", "in Tensor Core kernels", GREEN),
    ("eligible", "eligible operator, other kernel", ORANGE),
    ("layout", "eligible operator, layout rewritten", ACCENT),
    ("not_eligible", "not eligible", GREY),
    ("unknown", "unknown", DARK),
)
LOAD_COLOURS = {16: GREEN, 8: SKY, 4: ORANGE, 2: ACCENT, 1: PURPLE}


def plot_near_map(table: pd.DataFrame) -> Picture:
    """Draw a map of TFLOP/s around a size, and TFLOP/s by the widest load."""
    picture = Picture(10, 4.4)
    left, right = picture.panels(1, 2, width_ratios=[1.15, 1])
    _draw_map(left, table, slice(None, None, 4), slice(None, None, 4))
    _draw_by_load(right, table)
    heading(picture, table["machine"].iloc[0])
    return picture


def plot_far_map(table: pd.DataFrame) -> Picture:
    """Draw a map of TFLOP/s in large steps: K by factors of two, N in steps of 256."""
    picture = Picture(10, 3.6)
    _draw_map(picture.panel(), table, slice(3, None, 4), slice(None))
    heading(picture, table["machine"].iloc[0])
    return picture


def _draw_map(axes: Axes, table: pd.DataFrame, columns: slice, rows: slice) -> None:
    """Draw TFLOP/s as colours over N and K, with ticks at some columns and rows."""
    grid = table.pivot(index="k", columns="n", values="tflop_per_s")
    # Cividis: light is fast, and readable with colour-blindness.
    image = axes.imshow(grid, origin="lower", cmap="cividis", aspect="auto")
    axes.figure.colorbar(image, ax=axes, label="TFLOP/s")
    axes.set_xticks(np.arange(grid.shape[1])[columns], map("{:,}".format, grid.columns[columns]))
    axes.set_yticks(np.arange(grid.shape[0])[rows], map("{:,}".format, grid.index[rows]))
    first, best = table.iloc[0], table.loc[table["tflop_per_s"].idxmax()]
    label(axes, f"M = {first['m']:,}, {first['dtype']}", xlabel="N", ylabel="K")
    ends = f"from {digits(grid.min().min())} to {digits(grid.max().max())} TFLOP/s"
    describe(axes, "", [f"{ends}, at K = {best['k']:,} and N = {best['n']:,}"])


def _draw_by_load(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the speed of each product by the widest load that both K and N allow."""
    itemsize = ITEMSIZE[table["dtype"].iloc[0]]
    sides = zip(table["k"], table["n"])
    loads = [min(widest_load(length, itemsize) for length in pair) for pair in sides]
    generator, names = np.random.default_rng(0), []
    for place, (load, rows) in enumerate(table.groupby(loads)):
        speeds, median = rows["tflop_per_s"], rows["tflop_per_s"].median()
        jitter = generator.uniform(-0.25, 0.25, len(speeds))
        axes.plot(place + jitter, speeds, ".", color=LOAD_COLOURS[load], ms=5)
        axes.hlines(median, place - 0.3, place + 0.3, DARK, lw=1.5)
        kernels = ", ".join(rows["kernel"].map(family).unique()).split(", ")
        names.append("\n".join([str(load), *filter(None, dict.fromkeys(kernels)), digits(median)]))
        describe(axes, "", [f"{load} bytes: median {digits(median)} TFLOP/s"])
    axes.set_xticks(range(len(names)), names)
    words = "bytes of the widest load for K and N; kernel; median"
    label(axes, "one point per product", size=10, xlabel=words, ylim=(0, None))


def plot_tensor_cores(table: pd.DataFrame, machine: str) -> Picture:
    """Plot GPU time in milliseconds as stacked bars: in Tensor Cores, eligible, not, unknown.

    Args:
        table: from `tensor_core_summary`; it draws a bar for each trace.
        machine: where it was measured.
    """
    shares = table.set_index("name")
    parts = {column: 1e3 * shares[f"{column}_share"] * shares["gpu_s"] for column, *_ in PARTS}
    parts["eligible"] -= parts["layout"]
    picture = Picture(9.5, 1.6 + 0.34 * len(table))
    axes = picture.panel()
    lengths = {name: parts[column] for column, name, _ in PARTS}
    colours = {name: colour for _, name, colour in PARTS}
    words = [f"{share:.0%} on Tensor Cores" for share in table["tensor_core_share"]]
    stack(axes, list(shares.index), lengths, words=words, colours=colours, room=1.22)
    label(axes, machine, size=10, xlabel="milliseconds of GPU time in the complete trace")
    legend(picture, 3)
    return picture
