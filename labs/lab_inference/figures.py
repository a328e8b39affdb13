"""Figures of latency by batch, of ways to answer, of a scale for each channel, of fewer bits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from matplotlib.ticker import LogLocator

from course.charts.base import ACCENT, BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, SKY, Picture
from course.charts.primitives import (
    bars,
    describe,
    heading,
    label,
    legend,
    limit,
    lines,
    scatter_fit,
)
from course.text import digits
from labs.lab_inference.int8 import MOST
from labs.lab_inference.latency import knee

COLOURS = (BLUE, ACCENT, GREEN, PURPLE)
BATCH_COLOURS = (SKY, BLUE, DARK)


def plot_knees(curves: dict[str, pd.DataFrame], title: str = "") -> Picture:
    """Draw latency and images per second by batch: a line and its knee for each way.

    Args:
        curves: by name, tables of `inference.curve`.
        title: the machine.
    """
    picture = Picture(10, 3.7)
    left, right = picture.panels(1, 2)
    batches = sorted({each for table in curves.values() for each in table["batch"]})
    for axes, column, unit in ((left, "p50_s", 1e3), (right, "images_per_s", 1)):
        for (name, table), colour in zip(curves.items(), COLOURS):
            table = table.sort_values("batch")
            line = {name: (table["batch"], unit * table[column])}
            band = {name: (1e3 * table["p50_s"], 1e3 * table["p99_s"])} if axes is left else None
            lines(axes, line, bands=band, colours=colour, marker=".")
            bend = table[table["batch"] == knee(table)]
            ring = {f"knee, {name}": (bend["batch"], unit * bend[column])}
            scatter_fit(axes, ring, colours=colour, hollow=True, size=11)
        axes.set(xscale="log", yscale="log", xlabel="images at once")
        axes.set_xticks(batches, batches)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.minorticks_off()
    label(left, "ms per call: line p50, shade to p99", size=10)
    label(right, "images per second", size=10)
    legend(picture, 4)
    heading(picture, title)
    return picture


def plot_ladder(table: pd.DataFrame, title: str = "") -> Picture:
    """Draw how many times as fast as fp32 each way is, a bar for each number of images at once."""
    ways = list(dict.fromkeys(table["way"]))
    faster = table.pivot(index="way", columns="batch", values="faster").loc[ways]
    picture = Picture(10, 1.2 + 0.5 * len(ways))
    axes = picture.panel()
    series = {f"images at once: {batch}": faster[batch] for batch in faster}
    bars(axes, ways, series, colours=BATCH_COLOURS)
    label(axes, title, size=10, xlabel="times as fast as fp32")
    legend(picture)
    return picture


def plot_channels(weight: torch.Tensor) -> Picture:
    """Draw the largest weight of each output channel, and the steps left to the smallest one.

    Args:
        weight: of a convolution.
    """
    largest = weight.detach().abs().flatten(1).amax(dim=1).numpy()
    chosen = int(largest.argmin())
    own, top = float(largest[chosen]), float(largest.max())
    picture = Picture(10, 3)
    left, right = picture.panels(1, 2, width_ratios=[3, 2])
    colours = [ACCENT if place == chosen else SKY for place in range(len(largest))]
    left.bar(np.arange(len(largest)), largest, color=colours)
    limit(left, top, colour=DARK)
    steps_left = f"channel {chosen} has {round(MOST * own / top)} of {MOST} steps"
    describe(left, "", [f"from {digits(own)} to {digits(top)}; with one scale, {steps_left}"])
    title = "largest weight of each output channel"
    label(left, title, size=10, xlabel=f"channel (dashed: {MOST} steps, if all share a scale)")
    values = weight.detach()[chosen].flatten().numpy()
    for name, scale, colour in (("one scale for all", top, GREY), ("its own scale", own, ACCENT)):
        steps = np.round(values / scale * MOST)
        words = f"{name}: {len(np.unique(steps))} steps in use"
        edges = np.arange(-MOST, MOST + 8, 6) - 0.5
        right.hist(steps, edges, color=colour, alpha=0.75, label=words)
    label(right, f"channel {chosen}: its weights as int8", size=10, xlabel="step")
    legend(picture)
    return picture


def plot_bits(table: pd.DataFrame) -> Picture:
    """Draw accuracy by bits, with one scale a tensor and with one a channel (of `by_bits`)."""
    picture = Picture(7.5, 3.3)
    axes = picture.panel()
    curves = {
        f"a scale for each {name[2:]}": (rows["bits"], rows["top1"])
        for name, rows in table.sort_values("bits", ascending=False).groupby("scales")
    }
    lines(axes, curves, colours=(ACCENT, ORANGE), marker="o")
    limit(axes, table["fp32"].iloc[0], "fp32", colour=DARK)
    ticks = sorted(table["bits"].unique())
    label(axes, xlabel="bits", ylabel="accuracy in validation", xticks=ticks, ylim=(0, None))
    axes.invert_xaxis()
    legend(picture)
    return picture
