"""Plot the training images, a network's layers, and a sketch of asynchronous launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from torchvision.datasets import ImageFolder

from course.charts import (
    ACCENT,
    BLUE,
    GREY,
    SKY,
    Picture,
    label,
    limit,
    mark,
    plot_bar_panels,
    timeline,
)

WIDTH, HEIGHT, GAP = 168, 130, 8  # pixels per image; WIDTH includes the gap to the next
CLASSES, PER_CLASS = 16, 3


def plot_samples(root: Path) -> Picture:
    """Plot a few training images of each of the first classes of an ImageNet-style folder."""
    files = ImageFolder(root / "train")
    names = files.classes[:CLASSES]
    columns = min(8, len(names))
    blocks = -(-len(names) // columns)
    alt = "; ".join(names)
    picture = Picture(1.25 * columns, blocks * (PER_CLASS * 0.97 + 0.25), alt=alt)
    # One panel per block of classes: Matplotlib takes longer for a panel than for its content.
    for number, axes in enumerate(picture.subplots(blocks, squeeze=False).flat):
        labels = range(len(names))[number * columns : (number + 1) * columns]
        paths = [[p for p, label in files.samples if label == at][:PER_CLASS] for at in labels]
        axes.imshow(_side_by_side(paths, columns))
        middles = [(column + 0.5) * WIDTH - GAP / 2 for column in range(len(paths))]
        axes.set_xticks(middles, [names[at] for at in labels], fontsize=8)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.yaxis.set_visible(False)
        axes.spines[:].set_visible(False)
    return picture


def _side_by_side(paths: list[list[str]], columns: int) -> np.ndarray:
    """Return the images of each class, one below the other, with transparent gaps."""
    from PIL import Image

    canvas = Image.new("RGBA", (columns * WIDTH - GAP, PER_CLASS * HEIGHT - GAP))
    for column, images in enumerate(paths):
        for row, path in enumerate(images):
            with Image.open(path) as image:
                image.thumbnail((WIDTH - GAP, HEIGHT - GAP))
                left = column * WIDTH + (WIDTH - GAP - image.width) // 2
                canvas.paste(image, (left, row * HEIGHT))
    return np.asarray(canvas)


def plot_network_layers(table: pd.DataFrame) -> Picture:
    """Plot parameters and FLOPs of a network's parts (a table from `models.describe`)."""
    table = table[table["parameters"] > 0].set_index("part")
    gflop = {"compute per image (GFLOP, forward)": table["forward_gflop"]}
    return plot_bar_panels({"parameters (millions)": table["parameters"] / 1e6} | gflop)


def plot_launch_queue() -> Picture:
    """Sketch (not a measurement) how a host queues work for a device and continues."""
    picture = Picture(9, 2.3)
    axes = picture.panel()
    end = 0.3 + 2 * 3 + 1.9
    launches = [(0.5 * number, 0.4, SKY, f"{number + 1}") for number in range(4)]
    work = [(0.3 + 2 * number, 1.9, BLUE, f"{number + 1}") for number in range(4)]
    timeline(axes, {"host launches": launches, "device computes": work}, heights=[0.45])
    axes.barh(0, end - 2, left=2, color="white", edgecolor=GREY, hatch="///", height=0.45)
    mark(axes, (2 + end) / 2, -0.22, "synchronize(): the host waits", "above", size=8)
    for place, text in (
        (2, "a clock read here times the launches"),
        (end, "read here, it times the compute"),
    ):
        limit(axes, place, along="x")
        mark(axes, place, 0.5, text, colour=ACCENT, size=8)
    label(axes, xlabel="time →   (a sketch)", xlim=(0, end + 2.4), xticks=[])
    return picture
