"""Figures of memory: over the batch size, by part of the network, over the side of an image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course import Config
from course.charts import (
    ACCENT,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    heading,
    label,
    legend,
    limit,
    lines,
    scatter_fit,
    stack,
)
from course.lab import digits
from labs.memory.batch_sweep import Fit, fit
from labs.memory.memory_parts import memory_by_part
from labs.memory.volumes import unet_memory

KIND_COLOURS = {
    "weights": BLUE,
    "gradients": ORANGE,
    "optimizer state": GREEN,
    "weight copies": PURPLE,
    "batch": GREY,
    "activations": SKY,
}
PREDICTED_SIDES = {2: (256, 1024, 4096), 3: (64, 128, 256)}


def plot_batch_sweep(
    table: pd.DataFrame, predicted: pd.Series | None = None, limit_gib: float = 0.0
) -> Picture:
    """Draw peak memory, with a line through it, and throughput over the batch size.

    A run that ran out of memory is a cross, at the height of the line.

    Args:
        table: from `lab.sweep`.
        predicted: predicted peaks in GiB, by batch size.
        limit_gib: the device's memory, a dashed line like the runs' own limits (`memory_gib`).
    """
    line = fit(table)
    picture = Picture(10, 3.8)
    memory, speed = picture.panels(1, 2)
    ok, failed = table[table["status"] == "ok"], table[table["status"] != "ok"]
    _draw_fit(memory, line, table["batch_size"].max() * 1.06)
    scatter_fit(memory, {"measured": (ok["batch_size"], ok["peak_gib"])}, colours=BLUE)
    if predicted is not None:
        points = {"predicted": (predicted.index, predicted)}
        scatter_fit(memory, points, colours=ACCENT, markers="D", hollow=True, size=9)
    _draw_failures(memory, failed, line.peak_gib(failed["batch_size"]))
    for gib in sorted({limit_gib, *table["memory_gib"]} - {0}):
        limit(memory, gib, f"limit: {gib:.3g} GiB, enough for batch {line.largest_batch(gib)}")
    memory.legend(frameon=False, fontsize=8, loc="upper left")
    kinds = " or ".join(table["memory_kind"].dropna().unique()) or "unknown"
    label(memory, f"peak memory ({kinds})", size=10, xlabel="images per batch", ylabel="GiB")
    memory.set(xlim=(0, table["batch_size"].max() * 1.06), ylim=(0, memory.get_ylim()[1] * 1.35))
    spread = {"": (ok["images_per_s_q1"], ok["images_per_s_q3"])}
    speeds = {"": (ok["batch_size"], ok["images_per_s"])}
    lines(speed, speeds, errors=spread, marker="o", colours=BLUE)
    _draw_failures(speed, failed, 0 * failed["batch_size"])
    title = "images per second: median, quartiles"
    label(speed, title, size=10, xlabel="images per batch")
    speed.set_xscale("log", base=2)
    speed.set_xticks(table["batch_size"].unique(), table["batch_size"].unique())
    speed.minorticks_off()
    speed.set_ylim(bottom=0)
    titles = table["machine"] + "; " + table["model"] + ", " + table["inputs"]
    heading(picture, "\n".join(titles.dropna().unique()))
    return picture


def _draw_fit(axes: Axes, line: Fit, edge: float) -> None:
    ends = np.array([0, edge])
    peaks = line.peak_gib(ends)
    grows = f"grows: {line.per_image_gib * 1024:.1f} MiB per image"
    axes.fill_between(ends, line.fixed_gib, peaks, color=SKY, alpha=0.45, lw=0, label=grows)
    fixed = f"does not grow: {line.fixed_gib:.2f} GiB"
    axes.fill_between(ends, 0, line.fixed_gib, color=GREY, alpha=0.6, lw=0, label=fixed)
    near = f"line: within {max(line.largest_error, 0.001):.1%} of {line.sizes} sizes"
    name = "line through two sizes: no test" if line.sizes == 2 else near
    scatter_fit(axes, {}, {name: (ends, peaks)}, colours=BLUE)


def _draw_failures(axes: Axes, failed: pd.DataFrame, heights: pd.Series) -> None:
    axes.plot(failed["batch_size"], heights, "X", color=ACCENT, ms=11, clip_on=False, zorder=5)
    style = {"textcoords": "offset points", "ha": "right", "fontsize": 8, "color": ACCENT}
    rows = zip(failed["batch_size"], failed["status"], heights)
    for place, (batch, status, height) in enumerate(rows):
        words = f"{'out of memory' if status == 'oom' else status} at {batch}"
        line = place if heights.nunique() == 1 else 0  # words at one height would overlap
        axes.annotate(words, (batch, height), (-9, 9 + 11 * line), **style)


def plot_memory_by_part(config: Config) -> Picture:
    """Draw the memory of a config's step by part of the network, and in total; nothing runs."""
    table = memory_by_part(config)
    wide = table.pivot_table("gib", "part", "kind", "sum", sort=False)[list(KIND_COLOURS)]
    growing, fixed = wide[["batch", "activations"]], wide.drop(columns=["batch", "activations"])
    sums = pd.DataFrame({"grows": growing.sum(), "does not": fixed.sum()}).T
    picture = Picture(10, 3.9)
    panels = picture.panels(1, 3, width_ratios=(3, 3, 2))
    titles = ("grows with the batch", "does not grow", "in total")
    for axes, gib, title in zip(panels, (growing, fixed, sums[wide.columns].fillna(0)), titles):
        scale, unit = (1, "GiB") if gib.sum(axis=1).max() >= 1 else (1024, "MiB")
        totals = gib.sum(axis=1) * scale
        words = [digits(total) if total >= 0.01 else "< 0.01" for total in totals]
        parts = (gib * scale).to_dict("list")
        stack(axes, list(gib.index), parts, words=words, colours=KIND_COLOURS)
        label(axes, f"{title} ({unit})", size=10)
    panels[1].tick_params(labelleft=False)
    legend(picture, 6, {kind: KIND_COLOURS[kind] for kind in wide if wide[kind].any()})
    return picture


def plot_memory_by_side(gib: Callable[[int, int], float], limit_gib: float) -> Picture:
    """Draw activations and predicted peaks over the side of an image and of a volume.

    Args:
        gib: takes the side and 2 or 3 dimensions; returns GiB of activations.
        limit_gib: the memory of a GPU, a dashed line.
    """
    picture = Picture(8, 4.2)
    axes = picture.panel()
    for dims, name, colour in ((2, "image", BLUE), (3, "volume", ORANGE)):
        sides = 2.0 ** np.arange(6, 14 if dims == 2 else 10)
        curve = {f"{name}: activations": (sides, [gib(int(side), dims) for side in sides])}
        lines(axes, curve, colours=colour)
        sides = PREDICTED_SIDES[dims]
        peaks = [unet_memory(dims, side)[1] for side in sides]
        points = {f"{name}: predicted peak": (sides, peaks)}
        scatter_fit(axes, points, colours=colour, markers="D", hollow=True, size=8)
    limit(axes, limit_gib, f"{limit_gib:g} GiB")
    axes.set(xscale="log", yscale="log", ylim=(0.005, 500))
    axes.set_xscale("log", base=2)
    ticks = 2 ** np.arange(6, 14)
    axes.set_xticks(ticks, ticks)
    axes.set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    title = "U-Net, batch 1, fp32"
    label(axes, title, size=10, xlabel="pixels or voxels per side", ylabel="GiB")
    return picture
