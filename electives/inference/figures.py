"""Figures of latency by batch, by variant and by rate, of accuracy by bits, and of products."""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import LogLocator

from course.charts import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    bars,
    heading,
    label,
    legend,
    limit,
    lines,
    scatter_fit,
)
from electives.inference.latency import find_knee

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


def plot_service(table: pd.DataFrame, target_s: float, per_s: float, title: str = "") -> Picture:
    """Draw p99 of the latency by the rate of requests (from `latency_by_rate`), with a target."""
    picture = Picture(9, 3.8)
    axes = picture.panel()
    curves = {
        name: (rows["per_s"], 1e3 * rows["p99_s"])
        for name, rows in table.groupby("variant", sort=False)
    }
    lines(axes, curves, colours=COLOURS, marker=".")
    limit(axes, 1e3 * target_s, f"target: {1e3 * target_s:g} ms", colour=DARK)
    limit(axes, per_s, f"target: {per_s:,.0f} requests/s", colour=GREY, along="x")
    axes.set(xscale="log", yscale="log")
    rates = sorted(table["per_s"].unique())
    axes.set_xticks(rates, [f"{rate:,.0f}" for rate in rates])
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.minorticks_off()
    label(axes, title, size=10, xlabel="requests per second", ylabel="p99 of the latency, ms")
    legend(picture)
    return picture


def plot_products(table: pd.DataFrame) -> Picture:
    """Draw TFLOP/s of matrix products by shape, in bf16 and fp8 (from `load_products`)."""
    shapes = table["shape"].unique()
    rates = table.pivot(index="shape", columns="by", values="tflop_per_s").loc[shapes]
    picture = Picture(9, 1.3 + 0.5 * len(shapes))
    axes = picture.panel()
    bars(axes, shapes, {name: rates[name] for name in table["by"].unique()}, colours=COLOURS)
    label(axes, table["machine"].iloc[0], size=10, xlabel="TFLOP/s")
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
