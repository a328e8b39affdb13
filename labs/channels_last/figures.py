"""Figures of memory layout: strides, a step's time by part, a convolution's speed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

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
    label,
    legend,
    lines,
    stack,
    words_on,
)

CHANNEL_COLOURS = (SKY, ORANGE, GREEN, PURPLE, ACCENT, BLUE)
PART_COLOURS = (BLUE, GREEN, ACCENT, GREY)  # in the order of `time_by_part`
NEIGHBOURS = {"n": "next image", "c": "next channel", "h": "next row", "w": "next column"}
LETTERS = 26  # pixels of an image that have a letter
LINE_HEIGHT = 6.2  # of a line of memory with its arrows, in cells
CELL_INCHES, FEWEST_CELLS = 0.22, 30


def plot_strides(tables: dict[str, pd.DataFrame]) -> Picture:
    """Draw a tensor as it is indexed, and below as memory stores it in each layout.

    A letter is a pixel (capitals: of the second image), a colour a channel. Arrows lead from the
    first number to its neighbours; their lengths are the strides.

    Args:
        tables: from `lab.addresses`, by layout; of tensors of one shape, with one or two images of
            at most 26 pixels and 6 channels.

    Raises:
        ValueError: a tensor that is too large.
    """
    shape = tuple(next(iter(tables.values()))[list("nchw")].max() + 1)
    images, channels, height, width = shape
    if images > 2 or channels > len(CHANNEL_COLOURS) or height * width > LETTERS:
        raise ValueError(
            f"(N, C, H, W) = {tuple(map(int, shape))} is too large: draw up to 2 images with "
            f"{len(CHANNEL_COLOURS)} channels and {LETTERS} pixels"
        )
    planes, numbers = images * channels, images * channels * height * width
    cells = max(numbers, FEWEST_CELLS) + 0.4, height + 1 + LINE_HEIGHT * len(tables)
    picture = Picture(CELL_INCHES * cells[0], CELL_INCHES * cells[1])
    axes = picture.add_subplot()
    gap = (numbers - planes * width) / planes
    for plane in range(planes):
        image, channel = divmod(plane, channels)
        left = gap / 2 + plane * (width + gap)
        axes.text(left, height + 0.3, f"x[{image}, {channel}]", fontsize=9, color=DARK)
        for pixel in range(height * width):
            row, column = divmod(pixel, width)
            _draw_number(axes, left + column, height - 1 - row, image, channel, pixel)
    for place, (name, table) in enumerate(tables.items()):
        _draw_memory(axes, name, table, -2.5 - LINE_HEIGHT * place, width)
    axes.set_xlim(-0.2, cells[0] - 0.2)
    axes.set_ylim(height + 1.4 - cells[1], height + 1.4)
    axes.set_aspect("equal")
    axes.axis("off")
    return picture


def _draw_memory(axes: Axes, name: str, table: pd.DataFrame, base: float, width: int) -> None:
    """Draw a line of memory, with its strides as arrows from the first number."""
    for row in table.itertuples():
        _draw_number(axes, row.address, base, row.n, row.c, row.h * width + row.w)
    index = table.set_index(list("nchw"))["address"]
    units = {"n": (1, 0, 0, 0), "c": (0, 1, 0, 0), "h": (0, 0, 1, 0), "w": (0, 0, 0, 1)}
    strides = {name: int(index[unit]) for name, unit in units.items() if unit in index.index}
    words = ", ".join(str(strides.get(name, "any")) for name in units)
    axes.text(0, base + 1.4, f"{name}: stride of (n, c, h, w) = ({words})", fontsize=10)
    style = {"arrowstyle": "->", "mutation_scale": 7, "shrinkA": 0, "shrinkB": 0, "color": DARK}
    for depth, dimension in enumerate(sorted(strides, key=strides.get)):
        stride, y = strides[dimension], base - 0.5 - 0.72 * depth
        axes.annotate("", (stride + 0.47, y), (0.47, y), arrowprops=style)
        words = f"{NEIGHBOURS[dimension]}: {stride}"
        axes.text(stride + 0.9, y, words, fontsize=8, va="center", color=DARK)


def _draw_number(axes: Axes, x: float, y: float, image: int, channel: int, pixel: int) -> None:
    colour = CHANNEL_COLOURS[channel]
    axes.add_patch(Rectangle((x, y), 0.94, 0.94, color=colour, lw=0))
    letter = chr(ord("A" if image else "a") + pixel)
    style = {"ha": "center", "va": "center", "fontsize": 8, "color": words_on(colour)}
    axes.text(x + 0.47, y + 0.44, letter, **style)


def plot_time_by_part(table: pd.DataFrame) -> Picture:
    """Draw the GPU time of each part, one bar per trace.

    Args:
        table: from `lab.time_by_part`.
    """
    picture = Picture(9, 1.0 + 0.55 * len(table.columns))
    axes = picture.panel()
    parts = dict(zip(table.index, table.to_numpy()))
    words = [f"{total:.1f}" for total in table.sum()]
    stack(
        axes, list(table), parts, words=words, inside="{value:.1f}", colours=PART_COLOURS, room=1.1
    )
    label(axes, xlabel=f"milliseconds of GPU time in the traced step ({table.attrs['machine']})")
    legend(picture, len(PART_COLOURS))
    return picture


def plot_convolution_times(table: pd.DataFrame) -> Picture:
    """Draw a convolution's speed in both layouts over its channels; multiples of 8 are marked.

    Args:
        table: from `lab.convolution_times` or `lab.recorded_convolution`.

    Raises:
        ValueError: rows of several machines, precisions or sizes, which are not comparable.
    """
    common = ["machine", "precision", "passes", "batch_size", "image_px"]
    if len(table[common].drop_duplicates()) != 1:
        raise ValueError(f"rows must agree in {', '.join(common)}: choose one of each")
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
        # The shortest time is the highest speed.
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
