"""Figures of the compiler: trips through memory, and bytes by operator."""

from __future__ import annotations

import pandas as pd

from course.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    Picture,
    box,
    describe,
    label,
    legend,
    stack,
)

# Operators by their names in a table of `roofline.fusion_traffic`.
KINDS = {
    "convolutions": ("convolution", "convolution_backward"),
    "BatchNorm": ("native_batch_norm", "native_batch_norm_backward"),
    "ReLU": ("relu_", "threshold_backward"),
    "additions": ("add", "add_"),
}
# What the end of a residual block reads and writes, by kernel: tensors of the images' size.
TRIPS = {
    "eager": {"BatchNorm": (1, 1), "addition": (2, 1), "ReLU": (1, 1)},
    "fused": {"BatchNorm + addition + ReLU": (2, 1)},
}
TRIP_COLOURS = {"read": BLUE, "write": ORANGE}


def plot_trips() -> Picture:
    """Draw the tensors that a block's end reads and writes, eager and fused."""
    picture = Picture(9.5, 2.6)
    grid = picture.panels(1, 2, width_ratios=(3, 1.6))
    for axes, (name, kernels) in zip(grid, TRIPS.items()):
        width = 1 if len(kernels) > 1 else 1.6
        box(axes, 0, 2.0, width * len(kernels) - 0.1, 0.6, GREY, "the GPU's memory")
        for place, (kernel, (reads, writes)) in enumerate(kernels.items()):
            box(axes, width * place, 0.0, width - 0.1, 0.6, GREEN, kernel)
            trips = ["read"] * reads + ["write"] * writes
            for number, trip in enumerate(trips, 1):
                x = width * place + (width - 0.1) * number / (len(trips) + 1)
                ends = [(x, 1.95), (x, 0.65)]
                begin, end = ends if trip == "read" else reversed(ends)
                look = {"arrowstyle": "-|>", "color": TRIP_COLOURS[trip], "lw": 2}
                axes.annotate("", end, begin, arrowprops=look)
            describe(axes, kernel, [f"reads {reads}, writes {writes}"])
        count = sum(map(sum, kernels.values()))
        size = {"xlim": (-0.05, width * len(kernels)), "ylim": (-0.1, 2.7)}
        label(axes, f"{name}: {count} trips", xticks=[], yticks=[], **size)
        axes.spines[:].set_visible(False)
    legend(picture, 2, TRIP_COLOURS)
    return picture


def plot_traffic(table: pd.DataFrame) -> Picture:
    """Draw the megabytes moved per image, eager and fused.

    Args:
        table: from `roofline.fusion_traffic`.
    """
    picture = Picture(9.5, 2.5)
    axes = picture.panel()
    kinds = {kind: table.reindex(names).sum() for kind, names in KINDS.items()}
    kinds["other"] = table.sum() - sum(kinds.values())
    parts = {kind: mb[["eager", "least"]] for kind, mb in kinds.items()}
    colours = (BLUE, GREEN, ORANGE, PURPLE, GREY)
    look = {"unit": " MB", "inside": "{value:.0f}", "least": 0.04, "colours": colours}
    stack(axes, ["eager", "fused"], parts, **look)
    label(axes, xlabel="MB that a training step moves per image")
    legend(picture, 5)
    return picture
