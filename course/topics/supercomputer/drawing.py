"""What drawings of machines are made of: boxes, gauges, arrows and words, in inches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from course.charts.base import BOX, DARK, GREY, SKY, Picture

LINE = "#C9C9C5"


def canvas(width: float, height: float) -> tuple[Picture, Axes]:
    """Axes whose units are inches, so that text fits its box."""
    picture = Picture(width, height)
    axes = picture.add_subplot()
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")
    return picture, axes


def box(
    axes: Axes,
    left: float,
    low: float,
    wide: float,
    tall: float,
    title: str,
    *,
    dashed: bool = False,
) -> None:
    """A rounded box with its title in the upper left corner; dashed for what is not there."""
    shape = FancyBboxPatch(
        (left + 0.06, low + 0.06),
        wide - 0.12,
        tall - 0.12,
        boxstyle="round,pad=0.06",
        facecolor="white" if dashed else BOX,
        edgecolor=GREY,
        ls="--" if dashed else "-",
        lw=0.9,
    )
    axes.add_patch(shape)
    axes.text(left + 0.12, low + tall - 0.1, title, va="top", fontsize=9, color=DARK, weight="bold")


def tile(
    axes: Axes,
    left: float,
    low: float,
    wide: float,
    tall: float,
    squares: Sequence[str],
    edge: str = GREY,
) -> None:
    """One node, with a small square of a colour for each of its GPUs along its lower edge."""
    shape = Rectangle((left, low), wide, tall, facecolor="white", edgecolor=edge, lw=1.4)
    axes.add_patch(shape)
    rows = 2 if len(squares) > 4 and wide < 1 else 1
    columns = max(1, math.ceil(len(squares) / rows))
    side = min(0.17, (wide - 0.08) / columns)
    begin = left + (wide - side * columns) / 2
    for number, colour in enumerate(squares):
        row, column = divmod(number, columns)
        spot = (begin + (column + 0.08) * side, low + 0.08 + row * side)
        axes.add_patch(Rectangle(spot, side * 0.84, side * 0.84, color=colour, lw=0))


def gauge(axes: Axes, left: float, low: float, wide: float, tall: float, used: float) -> None:
    """A vessel, filled as far as it is used (0 to 1): upwards if it is tall, else to the right."""
    used = min(max(used, 0), 1)
    axes.add_patch(Rectangle((left, low), wide, tall, facecolor="white", edgecolor=GREY, lw=0.9))
    shape = (wide, tall * used) if tall > wide else (wide * used, tall)
    axes.add_patch(Rectangle((left, low), *shape, color=SKY, lw=0))


def arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], words: str) -> None:
    """An arrow, with words beside its middle."""
    axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": DARK})
    say(axes, (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2 + 0.13, words, points=8)


def say(
    axes: Axes, x: float, y: float, words: str, *, colour: str = DARK, points: float = 8.5
) -> None:
    """Words around a point."""
    axes.text(
        x, y, words, ha="center", va="center", fontsize=points, color=colour, linespacing=1.35
    )


def size(gib: float) -> str:
    """GiB for people: 24 GiB, 4.1 TiB."""
    for unit in ("GiB", "TiB"):
        if gib < 1000:
            return f"{gib:.0f} {unit}" if gib >= 10 else f"{gib:.1f} {unit}"
        gib /= 1024
    return f"{gib:.1f} PiB"
