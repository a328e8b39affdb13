"""Figures of memory layout: strides, a step's time by part, a convolution's speed, blocks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
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
    describe,
    label,
    legend,
    lines,
    stack,
    words_on,
)
from labs.channels_last.convolution import recorded_convolution
from labs.channels_last.strides import addresses, batch_norm_by_channels, time_by_part

CHANNEL_COLOURS = (SKY, ORANGE, GREEN, PURPLE, ACCENT, BLUE)
PART_COLOURS = (BLUE, GREEN, ACCENT, GREY)  # in the order of `time_by_part`
NEIGHBOURS = {"n": "next image", "c": "next channel", "h": "next row", "w": "next column"}
LETTERS = 26  # pixels of an image that have a letter
# Of an H100, which has room for 2,048 threads in each; PyTorch's BatchNorm uses blocks of 512.
MULTIPROCESSORS, BLOCKS_EACH, GRID_ROWS = 132, 4, 6
LINE_HEIGHT = 6.2  # of a line of memory with its arrows, in cells
CELL_INCHES, FEWEST_CELLS = 0.22, 30


def plot_strides(tensors: dict[str, torch.Tensor]) -> Picture:
    """Draw a tensor as it is indexed, and below as memory stores it in each layout.

    A letter is a pixel (capitals: of the second image), a colour a channel. Arrows lead from the
    first number to its neighbours; their lengths are the strides.

    Args:
        tensors: 4-d tensors of one shape, by layout; with one or two images of at most 26 pixels
            and 6 channels.

    Raises:
        ValueError: a tensor that is too large.
    """
    tables = {name: addresses(tensor) for name, tensor in tensors.items()}
    shape = images, channels, height, width = next(iter(tensors.values())).shape
    if images > 2 or channels > len(CHANNEL_COLOURS) or height * width > LETTERS:
        raise ValueError(
            f"(N, C, H, W) = {tuple(shape)} is too large: draw up to 2 images with "
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


def plot_time_by_part(machine: str, *rungs: str) -> Picture:
    """Draw the GPU time of each part of recorded steps, one bar per rung."""
    table = time_by_part(machine, *rungs)
    picture = Picture(9, 1.0 + 0.55 * len(rungs))
    axes = picture.panel()
    parts = dict(zip(table.index, table.to_numpy()))
    words = [f"{total:.1f}" for total in table.sum()]
    stack(
        axes, list(table), parts, words=words, inside="{value:.1f}", colours=PART_COLOURS, room=1.1
    )
    label(axes, xlabel=f"milliseconds of GPU time in the traced step ({table.attrs['machine']})")
    legend(picture, len(PART_COLOURS))
    return picture


def plot_convolution_times(machine: str, precision: str = "bf16", channels: int = 72) -> Picture:
    """Draw a recorded convolution's speed in both layouts over its channels, up to a number.

    Multiples of 8 are marked.
    """
    table = recorded_convolution(machine, precision)
    title, table = table.attrs["title"], table[table["channels"] <= channels]
    picture = Picture(8.5, 3.4)
    axes = picture.panel()
    counts = np.unique(table["channels"])
    for count in counts[counts % 8 == 0]:
        axes.axvline(count, color=GREY, lw=8, alpha=0.3)
    speeds = {
        name: (rows["channels"], rows["tflop_per_s"]) for name, rows in table.groupby("layout")
    }
    lines(axes, speeds, colours=(ORANGE, BLUE), marker="o")
    words = {"xlabel": "channels, in and out (grey: multiples of 8)", "ylabel": "TFLOP/s"}
    label(axes, title, xticks=counts, **words)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc=(0.74, 0.75))
    return picture


def plot_busy_multiprocessors(machine: str, *channels: int) -> Picture:
    """Draw how much of an H100 a BatchNorm in NCHW fills, with its recorded times in both layouts.

    Each multiprocessor has room for four blocks of 512 threads, and each channel is one block. We
    assume that the GPU gives a block to a multiprocessor without one, as long as there are any.
    """
    ms = batch_norm_by_channels(machine, "amp", "channels_last")
    places = MULTIPROCESSORS * BLOCKS_EACH
    picture = Picture(10, 2.0)
    for axes, count in zip(picture.panels(1, len(channels)), channels):
        for number in range(places):
            block, sm = divmod(number, MULTIPROCESSORS)
            (x, y), (right, up) = divmod(sm, GRID_ROWS), divmod(block, 2)
            colour = ORANGE if number < count else GREY + "40"
            place = (1.15 * x + 0.5 * right, -1.15 * y + 0.5 * up)
            axes.add_patch(Rectangle(place, 0.44, 0.44, color=colour, lw=0))
        nchw, nhwc = ms.loc[count]
        words = f"{count} channels: {count} of {places} places, {count / places:.0%}"
        label(axes, f"{words}\nNCHW {nchw:.1f} ms, NHWC {nhwc:.1f} ms", size=10)
        describe(axes, "", [f"{min(count, MULTIPROCESSORS)} multiprocessors have work"])
        axes.set(
            xlim=(-0.3, 1.15 * MULTIPROCESSORS / GRID_ROWS), ylim=(-1.15 * GRID_ROWS + 0.9, 1.2)
        )
        axes.set_aspect("equal")
        axes.axis("off")
    return picture
