"""Pictures of what goes in: data and model; and sketches, which measure nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from course.charts.base import ACCENT, GREY, ON_LIGHT, Picture, clean
from course.data.folders import class_names, images_below

WIDE, HIGH, GAP = 168, 130, 8  # pixels: an image's place with what is between two, and that alone


def samples(root: Path, classes: int = 16, per_class: int = 3) -> Picture:
    """A few training images of each class of an ImageNet-style folder, as they lie on disk."""
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
    """Where a network's parameters and its arithmetic are (a table of `models.describe`)."""
    table = table[table["parameters"] > 0]
    picture = Picture(8, 2.6)
    for axes, column, title, unit in zip(
        picture.subplots(1, 2, sharey=True),
        ("parameters", "forward_gflop"),
        ("parameters (millions)", "arithmetic of one image (GFLOP, forward)"),
        (1e6, 1),
    ):
        axes.barh(table["part"], table[column] / unit, color="#0072B2", height=0.65)
        axes.set_title(title, loc="left", fontsize=10)
        clean(axes)
    axes.invert_yaxis()
    return picture


def queue_sketch() -> Picture:
    """A sketch, not a measurement: a host that puts work into a device's queue and goes on."""
    picture = Picture(9, 2.3)
    axes = picture.add_subplot()
    starts = [0.0, 0.5, 1.0, 1.5]
    for number, start in enumerate(starts):
        axes.barh(1, 0.4, left=start, color="#56B4E9", height=0.45)
        axes.text(
            start + 0.2,
            1,
            f"ask {number + 1}",
            ha="center",
            va="center",
            fontsize=8,
            color=ON_LIGHT,
        )
        axes.barh(0, 1.9, left=0.3 + 2 * number, color="#0072B2", height=0.45)
        done, middle = f"compute {number + 1}", 1.25 + 2 * number
        axes.text(middle, 0, done, ha="center", va="center", color="white", fontsize=8)
    end = 0.3 + 2 * 3 + 1.9
    axes.barh(1, end - 2.0, left=2.0, color="white", edgecolor=GREY, hatch="///", height=0.45)
    axes.text((2 + end) / 2, 1.36, "synchronize(): the host waits", ha="center", fontsize=8)
    for place, text in (
        (2.0, "a clock read here times the asking"),
        (end, "read here, it times the work"),
    ):
        axes.axvline(place, color=ACCENT, lw=1.2, ls="--")
        axes.text(place + 0.06, 0.5, text, color=ACCENT, fontsize=8, va="center")
    axes.set_yticks([0, 1], ["device", "host"])
    axes.set_xlim(0, end + 2.4)
    axes.set_ylim(-0.4, 1.6)
    axes.set_xticks([])
    axes.set_xlabel("time →   (a sketch)")
    clean(axes)
    return picture
