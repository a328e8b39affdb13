"""Figures of data and model, and sketches, which measure nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from course.charts.base import ACCENT, BLUE, GREY, SKY, Picture
from course.charts.primitives import Colours, bars, heading, label, limit, mark, timeline
from course.data.folders import class_names, images_below

WIDE, HIGH, GAP = 168, 130, 8  # pixels: an image's place with what is between two, and that alone


def samples(root: Path, classes: int = 16, per_class: int = 3) -> Picture:
    """Show a few training images of each class of an ImageNet-style folder."""
    folders = [root / "train" / name for name in class_names(root / "train", [])][:classes]
    columns = min(8, len(folders))
    blocks = -(-len(folders) // columns)
    said = "; ".join(folder.name for folder in folders)
    picture = Picture(1.25 * columns, blocks * (per_class * 0.97 + 0.25), alt=said)
    # One panel a block of classes: Matplotlib takes longer for a panel than for what is in it.
    for number, axes in enumerate(picture.subplots(blocks, squeeze=False).flat):
        shown = folders[number * columns : (number + 1) * columns]
        axes.imshow(_side_by_side(shown, columns, per_class))
        middles = [(column + 0.5) * WIDE - GAP / 2 for column in range(len(shown))]
        axes.set_xticks(middles, [folder.name for folder in shown], fontsize=8)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.yaxis.set_visible(False)
        axes.spines[:].set_visible(False)
    return picture


def _side_by_side(folders: list[Path], columns: int, rows: int) -> np.ndarray:
    """The first images of each folder, one below the other; what is between them is clear."""
    from PIL import Image

    whole = Image.new("RGBA", (columns * WIDE - GAP, rows * HIGH - GAP))
    for column, folder in enumerate(folders):
        for row, path in enumerate(sorted(images_below(folder, []))[:rows]):
            with Image.open(path) as image:
                image.thumbnail((WIDE - GAP, HIGH - GAP))
                left = column * WIDE + (WIDE - GAP - image.width) // 2
                whole.paste(image, (left, row * HIGH))
    return np.asarray(whole)


def layers(table: pd.DataFrame) -> Picture:
    """Draw where a network's parameters and its FLOPs are (a table of `models.describe`)."""
    table = table[table["parameters"] > 0].set_index("part")
    gflop = {"arithmetic of one image (GFLOP, forward)": table["forward_gflop"]}
    return bar_panels({"parameters (millions)": table["parameters"] / 1e6} | gflop)


def bar_panels(
    panels: Mapping[str, pd.Series],
    machine: str = "",
    *,
    colours: Colours = BLUE,
    sharex: bool = False,
) -> Picture:
    """Draw values of the same names side by side: a bar for each index of each series."""
    names = list(next(iter(panels.values())).index)
    picture = Picture(9.5, 0.8 + 0.4 * len(names))
    grid = picture.panels(1, len(panels), sharex=sharex, sharey=True)
    for axes, (title, values) in zip(grid, panels.items()):
        bars(axes, names, values, colours=colours)
        label(axes, title, size=10)
    if sharex:
        grid[0].set_xlim(0, 1.2 * max(values.max() for values in panels.values()))
    heading(picture, machine)
    return picture


def queue_sketch() -> Picture:
    """Draw a sketch, not a measurement: a host that queues work for a device and goes on."""
    picture = Picture(9, 2.3)
    axes = picture.panel()
    end = 0.3 + 2 * 3 + 1.9
    asks = [(0.5 * number, 0.4, SKY, f"ask {number + 1}") for number in range(4)]
    work = [(0.3 + 2 * number, 1.9, BLUE, f"compute {number + 1}") for number in range(4)]
    timeline(axes, {"host": asks, "device": work}, heights=[0.45])
    axes.barh(0, end - 2, left=2, color="white", edgecolor=GREY, hatch="///", height=0.45)
    mark(axes, (2 + end) / 2, -0.22, "synchronize(): the host waits", "above", size=8)
    for place, text in (
        (2, "a clock read here times the asking"),
        (end, "read here, it times the work"),
    ):
        limit(axes, place, along="x")
        mark(axes, place, 0.5, text, colour=ACCENT, size=8)
    label(axes, xlabel="time →   (a sketch)", xlim=(0, end + 2.4), xticks=[])
    return picture
