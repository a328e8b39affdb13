"""Plot the training images, a network's layers, and sketches of the queues of host and GPU."""

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
    describe,
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


def plot_queues() -> Picture:
    """Sketch (not a measurement) three steps of a host and a GPU, without and with `.item()`."""
    picture = Picture(9.5, 4.6)
    panels = picture.panels(2, sharex=True)
    launch, kernel, count, python = 0.4, 1.1, 4, 1.0
    work = count * kernel
    for axes, title, waits in (
        (panels[0], "without .item(): the host runs ahead", False),
        (panels[1], "with .item() after each step: the GPU idles until the next launch", True),
    ):
        host, device, waiting, idle = [], [], [], []
        now = free = 0.0
        for step, colour in ((1, SKY), (2, BLUE), (3, SKY)):
            for _ in range(count):
                host.append((now, launch * 0.92, colour, f"{step}"))
                now += launch
                if now > free + 0.05 and free:
                    idle.append((free, now - free))
                free = max(now, free) + kernel
                device.append((free - kernel, kernel * 0.96, colour, f"{step}"))
            if waits:
                waiting.append((now, free - now))
                now = free
            now += python
        timeline(axes, {"host launches": host, "GPU computes": device}, heights=[0.5])
        for begin, length in waiting:
            axes.barh(0, length, left=begin, color="white", edgecolor=GREY, hatch="///", height=0.5)
        for begin, length in idle:
            axes.barh(1, length, left=begin, color="none", edgecolor=ACCENT, lw=1.5, height=0.5)
            mark(axes, begin + length / 2, 0.72, "idle", "above", size=8, colour=ACCENT)
        label(axes, title, size=10, xticks=[])
        describe(axes, "", [f"the GPU idles {len(idle)} times"])
        if not waits:
            for place, words in (
                (now, "a clock read here times the launches"),
                (free, "here, the work"),
            ):
                limit(axes, place, along="x")
                mark(axes, place, 0.5, words, colour=ACCENT, size=8)
    words = "time →   (a sketch; numbers are steps, hatched: the host waits)"
    label(
        panels[1],
        panels[1].get_title("left"),
        size=10,
        xlabel=words,
        xlim=(0, 3 * (work + 1.6) + 1),
    )
    return picture
