"""Figures of the benchmark: what networks cost, and how fast they are."""

from __future__ import annotations

import pandas as pd

from course.charts import FORMAT_COLOURS, SKY, Picture, bars, heading, label, plot_bar_panels
from course.lab import digits
from electives.networks.catalogue import NETWORKS
from electives.networks.cost import network_costs
from electives.networks.measurements import speeds_by_setting

TITLES = {"ssd300": "SSD300", "unet3d": "3D U-Net", "resnet50": "ResNet-50"}
BUSY = 0.95  # share of a step from which a GPU counts as busy all the time
# Rows of a ladder: words, and the setting (precision, layout, compiled).
RUNGS = {
    "fp32": ("fp32", "contiguous", False),
    "TF32": ("tf32", "contiguous", False),
    "bf16": ("bf16", "contiguous", False),
    "fp16": ("fp16", "contiguous", False),
    "bf16, channels last": ("bf16", "channels_last", False),
    "fp16, channels last": ("fp16", "channels_last", False),
    "… compiled": ("fp16", "channels_last", True),
}


def plot_costs() -> Picture:
    """Count and draw each network's operations and bytes per image in training."""
    table = network_costs().rename(index=TITLES)
    gflop = {"GFLOP for an image or volume, in training": table["gflop"]}
    return plot_bar_panels(gflop | {"MB moved for it, in 16 bits": table["megabytes_half"]})


def _span(measured: float, busy: float) -> str:
    """Return words for a speed and, if the GPU waited, for the speed of its busy time.

    They count as different only if a trace of one step shows it for certain.
    """
    waits = busy > measured / BUSY
    return f"{digits(measured)} to {digits(busy)}" if waits else digits(measured)


def plot_ladder(measurements: pd.DataFrame) -> Picture:
    """Draw each network's images/s in training, from fp32 to a compiled fp16.

    Pale: the speed if the GPU never waited, for steps that were traced. Rungs that no network has
    are left out.
    """
    all_measured, all_busy = (
        speeds_by_setting(measurements, column).reindex(columns=[*RUNGS.values()])
        for column in ("images_per_s", "images_per_busy_s")
    )
    rungs = [rung for rung, setting in RUNGS.items() if all_measured[setting].notna().any()]
    settings = [RUNGS[rung] for rung in rungs]
    colours = [SKY if RUNGS[rung][2] else FORMAT_COLOURS[RUNGS[rung][0]] for rung in rungs]
    picture = Picture(9.8, 1.0 + 0.3 * len(rungs))
    for axes, name in zip(picture.panels(1, len(TITLES), sharey=True), TITLES):
        measured, busy = (table.loc[name, settings] for table in (all_measured, all_busy))
        best = busy.fillna(measured)
        low = measured.where(busy > measured / BUSY, best)
        words = [
            f"{_span(*speeds)} ({ratio:.1f} ×)"
            for *speeds, ratio in zip(low, best, best / best.iloc[0])
        ]
        look = {"colours": colours, "pale": busy, "missing": "–", "room": 2.3}
        bars(axes, rungs, measured, words=words, **look)
        axes.locator_params(axis="x", nbins=5)
        title = f"{TITLES[name]}, batch {NETWORKS[name].batch_size}"
        label(axes, title, size=10, xlabel="images per second")
    heading(picture, measurements["machine"].iloc[0])
    return picture
