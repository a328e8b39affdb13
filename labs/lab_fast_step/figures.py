"""Figures of the fast step: memory traffic, and the limits of memory and power."""

from __future__ import annotations

import numpy as np
import pandas as pd

from course.charts.base import BLUE, DARK, GREY, ORANGE, Picture
from course.charts.primitives import bars, label, legend, limit, lines, scatter_fit

COLOURS = {"eager": DARK, "compile": ORANGE, "fast": BLUE}


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
        point, words = ([megabytes[method]], [speed]), [f"{method}, {speed:,.0f}"]
        colour = COLOURS[method]
        scatter_fit(axes, {"": point}, colours=colour, size=9, words={"": words})
    label(axes, xlabel="MB per image that the blocks move", ylabel="images/s", ylim=(0, 16000))
    legend(picture)
    return picture
