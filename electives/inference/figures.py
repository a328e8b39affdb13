"""Figures of latency by batch, by variant and by rate."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.ticker import LogLocator

from course.charts import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
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
from electives.inference.serving import Serve, latency_by_rate

COLOURS = (BLUE, ACCENT, GREEN, PURPLE)
BATCH_COLOURS = (SKY, BLUE, DARK)


def plot_latency(curves: dict[str, pd.DataFrame], title: str = "") -> Picture:
    """Draw latency and images per second by batch: a line and its knee for each variant.

    Args:
        curves: by name, tables with a row for each batch: batch, p50_s, p99_s, images_per_s.
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


def plot_service(
    serve: Serve,
    curves: dict[str, pd.DataFrame],
    rates: Sequence[float],
    target: tuple[float, float],
    title: str = "",
) -> Picture:
    """Draw p99 of the latency by the rate of requests, as `serve` simulates it with max_batch=64.

    Args:
        curves: by name, tables with the p50_s of each batch.
        target: requests per second, and the seconds that p99 may take.
        title: the machine.
    """
    table = latency_by_rate(serve, curves, rates, 64, 0.0)
    per_s, target_s = target
    picture = Picture(9, 3.8)
    axes = picture.panel()
    by_rate = {
        name: (rows["per_s"], 1e3 * rows["p99_s"])
        for name, rows in table.groupby("variant", sort=False)
    }
    lines(axes, by_rate, colours=COLOURS, marker=".")
    limit(axes, 1e3 * target_s, f"target: {1e3 * target_s:g} ms", colour=DARK)
    limit(axes, per_s, f"target: {per_s:,.0f} requests/s", colour=GREY, along="x")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(rates, [f"{rate:,.0f}" for rate in rates])
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.minorticks_off()
    label(axes, title, size=10, xlabel="requests per second", ylabel="p99 of the latency, ms")
    legend(picture)
    return picture
