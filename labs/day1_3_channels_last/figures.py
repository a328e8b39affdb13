"""Pictures of memory layout: the orders in which memory can hold a tensor; a step's parts."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    words_on,
)
from course.charts.primitives import label, legend, lines, stack

CHANNELS = (SKY, ORANGE, GREEN, PURPLE, ACCENT, BLUE)  # a channel's colour
NEIGHBOURS = {"w": "next column", "h": "next row", "c": "next channel", "n": "next image"}
PARTS = (
    BLUE,
    GREEN,
    ACCENT,
    GREY,
)  # a part's colour, in the order of `labs.day1_3_channels_last.strides.parts`
LETTERS = 26  # pixels of an image that can have one
BLOCK = 6.2  # height of a memory line with its arrows, in cells
CELL_IN, LEAST = 0.22, 30  # a cell's width in inches; the least width of the picture in cells


def plot_strides(tables: dict[str, pd.DataFrame]) -> Picture:
    """A tensor as it is indexed, and below as memory holds it, once for each layout.

    A letter is a pixel (capitals: of the second image), a colour a channel. Arrows lead from the
    first number to its neighbours; their lengths are the strides.

    Args:
        tables: what `labs.day1_3_channels_last.strides.addresses` returns, by the layout's name; of
            tensors of one shape, with one or two images of at most 26 pixels and 6 channels.

    Raises:
        ValueError: tables of different shapes, none, or a tensor that is too large to draw.
    """
    shape = _shape(tables)
    images, channels, height, width = shape
    across = images * channels * height * width
    extent = max(across, LEAST) + 0.4, height + 1 + BLOCK * len(tables)
    picture = Picture(*(CELL_IN * cells for cells in extent))
    axes = picture.add_subplot()
    _grids(axes, shape, across)
    for place, (name, table) in enumerate(tables.items()):
        _memory(axes, name, table, -2.5 - BLOCK * place)
    axes.set_xlim(-0.2, extent[0] - 0.2)
    axes.set_ylim(height + 1.4 - extent[1], height + 1.4)
    axes.set_aspect("equal")
    axes.axis("off")
    return picture


def _shape(tables: dict[str, pd.DataFrame]) -> tuple[int, int, int, int]:
    shapes = {tuple(int(table[name].max()) + 1 for name in "nchw") for table in tables.values()}
    if len(shapes) != 1:
        raise ValueError(f"give strides tables of one shape; these have {sorted(shapes)}")
    images, channels, height, width = shape = shapes.pop()
    if images > 2 or channels > len(CHANNELS) or height * width > LETTERS:
        raise ValueError(
            f"strides draws up to 2 images of {len(CHANNELS)} channels and {LETTERS} pixels, not "
            f"(N, C, H, W) = {shape}: take a smaller tensor"
        )
    return shape


def _grids(axes: Axes, shape: tuple[int, int, int, int], across: int) -> None:
    """As it is indexed: a grid of rows and columns for each channel of each image."""
    images, channels, height, width = shape
    gap = (across - images * channels * width) / (images * channels)
    for plane in range(images * channels):
        image, channel = divmod(plane, channels)
        left = gap / 2 + plane * (width + gap)
        axes.text(left, height + 0.3, f"x[{image}, {channel}]", fontsize=9, color=DARK)
        for pixel in range(height * width):
            row, column = divmod(pixel, width)
            _number(axes, left + column, height - 1 - row, channel, _letter(image, pixel))


def _memory(axes: Axes, name: str, table: pd.DataFrame, base: float) -> None:
    """One line of memory, its strides as arrows from the first number."""
    width = int(table["w"].max()) + 1
    for row in table.itertuples():
        _number(axes, row.address, base, row.c, _letter(row.n, row.h * width + row.w))
    index = table.set_index(list("nchw"))["address"]
    steps = {}
    for place, dimension in enumerate("nchw"):
        neighbour = tuple(int(place == other) for other in range(4))
        if neighbour in index.index:
            steps[dimension] = int(index[neighbour])
    stride = ", ".join(str(steps.get(dimension, "any")) for dimension in "nchw")
    axes.text(0, base + 1.4, f"{name}: stride of (n, c, h, w) = ({stride})", fontsize=10)
    for depth, (dimension, step) in enumerate(sorted(steps.items(), key=lambda item: item[1])):
        _arrow(axes, step, base - 0.5 - 0.72 * depth, f"{NEIGHBOURS[dimension]}: {step}")


def _arrow(axes: Axes, step: int, y: float, text: str) -> None:
    arrow = FancyArrowPatch(
        (0.47, y),
        (step + 0.47, y),
        arrowstyle="->",
        mutation_scale=7,
        shrinkA=0,
        shrinkB=0,
        color=DARK,
        lw=1,
    )
    axes.add_patch(arrow)
    axes.text(step + 0.9, y, text, fontsize=8, va="center", color=DARK)


def _letter(image: int, pixel: int) -> str:
    return chr(ord("A" if image else "a") + pixel)


def _number(axes: Axes, x: float, y: float, channel: int, text: str) -> None:
    colour = CHANNELS[channel]
    axes.add_patch(Rectangle((x, y), 0.94, 0.94, color=colour, lw=0))
    middle = x + 0.47, y + 0.44
    axes.text(*middle, text, ha="center", va="center", fontsize=8, color=words_on(colour))


def plot_parts(tables: dict[str, pd.DataFrame]) -> Picture:
    """Where the GPU's time goes, one bar a trace, so that what shrank can be seen.

    Args:
        tables: what `labs.day1_3_channels_last.strides.parts` returns, by the name of the trace.
    """
    picture = Picture(9, 1.0 + 0.55 * len(tables))
    axes = picture.panel()
    wide = pd.DataFrame({name: each.set_index("part")["ms"] for name, each in tables.items()})
    parts = {part: wide.loc[part] for part in next(iter(tables.values()))["part"]}
    words = [f"{each:.1f}" for each in wide.sum()]
    stack(axes, list(tables), parts, words=words, inside="{value:.1f}", colours=PARTS, room=1.1)
    machines = {machine for table in tables.values() for machine in table["machine"]}
    where = ", ".join(sorted(machines))
    label(axes, xlabel=f"milliseconds of GPU time in the traced step ({where})")
    legend(picture, len(PARTS))
    return picture


def plot_convolution_times(table: pd.DataFrame) -> Picture:
    """A convolution's speed in both layouts over its channels; multiples of 8 are marked.

    Args:
        table: what `convolution.convolution_times` or `recorded_convolution` returns.

    Raises:
        ValueError: rows of several machines, precisions or sizes, which are not comparable.
    """
    alike = ["machine", "precision", "passes", "batch_size", "image_px"]
    if len(table[alike].drop_duplicates()) != 1:
        raise ValueError(f"rows must agree in {', '.join(alike)}: choose one of each")
    picture = Picture(8.5, 3.6)
    axes = picture.panel()
    first, channels = table.iloc[0], np.unique(table["channels"])
    scale, unit = (1, "TFLOP/s") if table["tflop_per_s"].max() >= 1 else (1e3, "GFLOP/s")
    for count in channels[channels % 8 == 0]:
        axes.axvline(count, color=GREY, lw=8, alpha=0.3)
    speeds, spreads = {}, {}
    for layout, rows in table.groupby("layout"):
        speed = rows["tflop_per_s"] * scale
        speeds[layout] = rows["channels"], speed
        # The least time is the highest speed.
        spreads[layout] = [speed * rows["ms"] / rows[name] for name in ("ms_q3", "ms_q1")]
    lines(axes, speeds, errors=spreads, colours=(ORANGE, BLUE), marker="o")
    spread = ", quartiles" if table["ms_q1"].notna().any() else ""
    label(
        axes,
        f"{first.machine.split(', with')[0]}\n3×3 convolution, {first.passes}, {first.precision}, "
        f"batch {first.batch_size}, {first.image_px} px",
        xlabel="channels, in and out (grey: multiples of 8)",
        ylabel=f"{unit}: median{spread}",
        xticks=channels if np.ptp(channels) <= 20 else channels[channels % 8 == 0],
    )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return picture
