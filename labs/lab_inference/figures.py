"""Figures of latency by batch and by variant, of weights by channel, and of accuracy by bits."""

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
from labs.lab_inference.int8 import MAX_STEPS
from labs.lab_inference.latency import find_knee

COLOURS = (BLUE, ACCENT, GREEN, PURPLE)
BATCH_COLOURS = (SKY, BLUE, DARK)


def plot_latency(curves: dict[str, pd.DataFrame], title: str = "") -> Picture:
    """Draw latency and images per second by batch: a line and its knee for each variant.

    Args:
        curves: by name, tables of `latency_curve`.
        title: the machine.
    """
    picture = Picture(10, 3.7)
    left, right = picture.panels(1, 2)
    batches = sorted(set(pd.concat(curves)["batch"]))
    for axes, column, unit in ((left, "p50_s", 1e3), (right, "images_per_s", 1)):
        for (name, table), colour in zip(curves.items(), COLOURS):
            table = table.sort_values("batch")
            line = {name: (table["batch"], unit * table[column])}
            band = {name: (1e3 * table["p50_s"], 1e3 * table["p99_s"])} if axes is left else None
            lines(axes, line, bands=band, colours=colour, marker=".")
            bend = table[table["batch"] == find_knee(table)]
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


def plot_speedups(table: pd.DataFrame, title: str = "") -> Picture:
    """Draw the speedup of each variant over fp32, with a bar for each number of images at once."""
    variants = table["variant"].unique()
    faster = table.pivot(index="variant", columns="batch", values="faster").loc[variants]
    picture = Picture(10, 1.2 + 0.5 * len(variants))
    axes = picture.panel()
    series = {f"images at once: {batch}": faster[batch] for batch in faster}
    bars(axes, variants, series, colours=BATCH_COLOURS)
    label(axes, title, size=10, xlabel="times as fast as fp32")
    legend(picture)
    return picture


def plot_channel_ranges(weight: torch.Tensor) -> Picture:
    """Draw a convolution's largest weight by output channel, and the smallest channel's steps."""
    largest = weight.detach().abs().flatten(1).amax(dim=1).numpy()
    smallest = int(largest.argmin())
    ranges = {"one scale for all": largest.max(), "its own scale": largest[smallest]}
    picture = Picture(10, 3)
    left, right = picture.panels(1, 2, width_ratios=[3, 2])
    colours = [ACCENT if channel == smallest else SKY for channel in range(len(largest))]
    left.bar(np.arange(len(largest)), largest, color=colours)
    limit(left, largest.max(), colour=DARK)
    steps = round(MAX_STEPS * largest[smallest] / largest.max())
    words = f"with one scale, channel {smallest} has {steps} of {MAX_STEPS} steps"
    describe(left, "", [f"from {digits(largest[smallest])} to {digits(largest.max())}; {words}"])
    xlabel = f"channel (dashed: {MAX_STEPS} steps, if all share a scale)"
    label(left, "largest weight of each output channel", size=10, xlabel=xlabel)
    weights = weight.detach()[smallest].flatten().numpy()
    edges = np.arange(-MAX_STEPS, MAX_STEPS + 8, 6) - 0.5
    for (name, limit_), colour in zip(ranges.items(), (GREY, ACCENT)):
        steps = np.round(weights / limit_ * MAX_STEPS)
        words = f"{name}: {len(np.unique(steps))} steps in use"
        right.hist(steps, edges, color=colour, alpha=0.75, label=words)
    label(right, f"channel {smallest}: its weights as int8", size=10, xlabel="step")
    legend(picture)
    return picture


def plot_accuracy_by_bits(table: pd.DataFrame) -> Picture:
    """Draw accuracy by bits, with one scale per tensor and per channel (`accuracy_by_bits`)."""
    picture = Picture(7.5, 3.3)
    axes = picture.panel()
    curves = {
        f"one scale {name}": (rows["bits"], rows["top1"])
        for name, rows in table.sort_values("bits", ascending=False).groupby("scales")
    }
    lines(axes, curves, colours=(ACCENT, ORANGE), marker="o")
    limit(axes, table["fp32"].iloc[0], "fp32", colour=DARK)
    ticks = sorted(table["bits"].unique())
    label(axes, xlabel="bits", ylabel="accuracy in validation", xticks=ticks, ylim=(0, None))
    axes.invert_xaxis()
    legend(picture)
    return picture
