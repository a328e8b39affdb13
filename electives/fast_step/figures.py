"""Figures of the fast step: its tensors, memory traffic, and the limits of memory and power."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.charts import (
    BLUE,
    DARK,
    GREY,
    ORANGE,
    SKY,
    Picture,
    bars,
    describe,
    label,
    legend,
    limit,
    lines,
    mark,
    scatter_fit,
    words_on,
)

COLOURS = {"eager": DARK, "compile": ORANGE, "fast": BLUE}

# The operators after the first two convolutions of a bottleneck, and the tensors between them.
CHAIN = ("z", "conv3 (1×1)", "y", "bn3", "", "+ shortcut", "", "ReLU", "output")


def plot_tensors() -> Picture:
    """Draw the end of a bottleneck, and z, y, G and s as matrices."""
    picture = Picture(10, 4.5)
    axes = picture.panel()
    axes.set(xlim=(0, 10), ylim=(0, 4.5), aspect="equal")
    axes.axis("off")
    _draw_chain(axes)
    look = {"ha": "center", "va": "center", "fontsize": 9, "color": DARK}
    y = _matrix(axes, 0.75, 0.5, 1.6, 2.5, "y", ORANGE, "M × N, wide")
    z = _matrix(axes, 2.85, 0.5, 0.4, 2.5, "z", BLUE, "M × K, narrow")
    w = _matrix(axes, 3.75, 2.6, 1.6, 0.4, "Wᵀ", GREY, "K × N")
    axes.text(2.6, 1.75, "=", **look | {"fontsize": 14})
    axes.text(3.5, 2.8, "·", **look | {"fontsize": 14})
    axes.text(0.4, 1.75, "one row\nper pixel,\nM rows", **look)
    g = _matrix(axes, 6.3, 2.6, 0.4, 0.4, "G", SKY, "K × K")
    axes.text(6.95, 2.8, "=", **look | {"fontsize": 14})
    _matrix(axes, 7.2, 2.6, 1.6, 0.4, "zᵀ", BLUE, "")
    axes.text(8.95, 2.8, "·", **look | {"fontsize": 14})
    _matrix(axes, 9.1, 0.5, 0.4, 2.5, "z", BLUE, "")
    s = _matrix(axes, 6.3, 1.3, 0.4, 0.14, "s", SKY, "K: the sum of z's rows")
    describe(axes, "matrices", [y, z, w, g, s])
    return picture


def _draw_chain(axes: Axes) -> None:
    """Draw the end of a bottleneck from left to right: operators in boxes, tensors between them."""
    place, colours = 0.3, {"z": BLUE, "y": ORANGE}
    look = {"va": "center", "fontsize": 9}
    for number, name in enumerate(CHAIN):
        if number % 2:  # an operator
            axes.add_patch(Rectangle((place, 3.6), 1.3, 0.55, facecolor="#f6f6f4", edgecolor=GREY))
            axes.text(place + 0.65, 3.87, name, ha="center", color=DARK, **look)
            place += 1.3
            continue
        colour = colours.get(name, GREY)
        width = 0.75 if name else 0.4
        arrow = {"arrowstyle": "->", "color": colour, "lw": 2 if name == "z" else 5}
        axes.annotate("", (place + width, 3.87), (place, 3.87), arrowprops=arrow)
        axes.text(place + width / 2, 4.15, name, ha="center", color=DARK, **look)
        place += width
    describe(axes, "the end of a bottleneck", [name for name in CHAIN if name])


def _matrix(
    axes: Axes,
    left: float,
    low: float,
    width: float,
    height: float,
    name: str,
    colour: str,
    shape: str,
) -> str:
    """Draw a matrix with its name in it and its shape below; return both as words."""
    axes.add_patch(Rectangle((left, low), width, height, color=colour, lw=0))
    fits = height > 0.2
    place = (left + width / 2, low + height / 2) if fits else (left - 0.15, low + height / 2)
    look = {"ha": "center", "va": "center", "color": words_on(colour) if fits else DARK}
    axes.text(*place, name, fontsize=11, **look)
    axes.text(left + width / 2, low - 0.1, shape, ha="center", va="top", fontsize=9, color=DARK)
    return f"{name}: {shape}"


def plot_traffic(table: pd.DataFrame) -> Picture:
    """Draw the tensors that each part of a block reads and writes (from `block_traffic`)."""
    picture = Picture(10, 6)
    axes = picture.panel()
    series = {f"{method}: {table[method].sum()}": table[method] for method in COLOURS}
    no_words = {name: [""] * len(table) for name in series}
    bars(axes, table["part"], series, words=no_words, colours=[*COLOURS.values()], room=1.2)
    border = (table["pass"] == "forward").sum() - 0.5
    axes.axhline(border, color=GREY, lw=0.8, ls=":")
    for name, side in (("forward", "bottom"), ("backward", "top")):
        axes.text(axes.get_xlim()[1], border, name, ha="right", va=side, color=DARK)
    label(axes, xlabel="tensors read and written, in units of a narrow one")
    legend(picture)
    return picture


def plot_limits(
    measurements: pd.DataFrame, megabytes: pd.Series, tb_per_s: float, watts: float
) -> Picture:
    """Draw images/s over MB per image, with the limits of memory bandwidth and of power."""
    picture = Picture(9, 4.6)
    axes = picture.panel()
    span = np.linspace(120, 520, 200)
    memory = f"memory, {tb_per_s:.2f} TB/s, blocks only"
    lines(axes, {memory: (span, 1e6 * tb_per_s / span)}, colours=GREY)
    power = watts / measurements.loc["fast", "joules_per_image"]
    limit(axes, power, f"power, {watts:.0f} W at the fast step's joules per image")
    for method, speed in measurements["images_per_s"].items():
        colour, place = COLOURS[method], megabytes[method]
        scatter_fit(axes, {"": ([place], [speed])}, colours=colour, size=9)
        mark(axes, place, speed, f"{method}, {speed:,.0f}", "below", colour=colour)
    label(axes, xlabel="MB per image that the blocks move", ylabel="images/s", ylim=(0, 16000))
    legend(picture)
    return picture
