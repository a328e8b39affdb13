"""Parts of drawings of machines: boxes, squares, gauges, arrows and words, in inches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from course.charts.base import BOX, DARK, GREY, SKY, Picture, words_on
from course.charts.primitives import describe

LINE = "#C9C9C5"


def canvas(width: float, height: float, below: float = 0) -> tuple[Picture, Axes]:
    """Return axes whose units are inches, so that text fits its box, and a room for a legend."""
    picture = Picture(width, height + below)
    axes = picture.panel()
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
    words: str = "",
    *,
    points: float = 8.5,
) -> None:
    """Draw a rounded box with its title in the upper left corner, and words in it."""
    look = {"facecolor": BOX, "edgecolor": GREY, "lw": 0.9, "boxstyle": "round,pad=0.06"}
    axes.add_patch(FancyBboxPatch((left + 0.06, low + 0.06), wide - 0.12, tall - 0.12, **look))
    axes.text(left + 0.12, low + tall - 0.1, title, va="top", fontsize=9, color=DARK, weight="bold")
    describe(axes, "", [title])
    say(axes, left + wide / 2, low + 0.4 * tall, words, points=points)


def squares(
    axes: Axes,
    left: float,
    low: float,
    wide: float,
    tall: float,
    colours: Sequence[str],
    words: Sequence[str] = (),
    *,
    most: float = 0.75,
) -> None:
    """Draw a square of each colour in the middle of a place, as large as fits, at most `most`.

    Args:
        words: in the squares, where these are large enough.
    """
    count = len(colours)

    def fit(columns: int) -> tuple[float, int, int]:
        side = min(wide / columns, tall / math.ceil(count / columns), most)
        return round(side, 3), -(-count % columns), columns  # large, then with a full last row

    side, _, columns = max(map(fit, range(1, count + 1)), default=(most, 0, 1))
    top = low + (tall + side * math.ceil(count / columns)) / 2
    left += (wide - side * columns) / 2
    for number, colour in enumerate(colours):
        row, column = divmod(number, columns)
        spot = left + (column + 0.08) * side, top - (row + 0.92) * side
        axes.add_patch(Rectangle(spot, side * 0.84, side * 0.84, color=colour, lw=0))
        if words and side > 0.5:
            middle = spot[0] + 0.42 * side, spot[1] + 0.42 * side
            say(axes, *middle, words[number], colour=words_on(colour), points=7.5)


def gauge(axes: Axes, left: float, low: float, wide: float, tall: float, used: float) -> None:
    """Draw a bar, filled as far as it is used (0 to 1): upwards if it is tall, else rightwards."""
    used = min(max(used, 0), 1)
    axes.add_patch(Rectangle((left, low), wide, tall, facecolor="white", edgecolor=GREY, lw=0.9))
    shape = (wide, tall * used) if tall > wide else (wide * used, tall)
    axes.add_patch(Rectangle((left, low), *shape, color=SKY, lw=0))


def arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], words: str) -> None:
    """Draw an arrow, with words above its middle."""
    axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": DARK})
    say(axes, (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2 + 0.13, words, points=8)


def say(
    axes: Axes, x: float, y: float, words: str, *, colour: str = DARK, points: float = 8.5
) -> None:
    """Write words around a point, and add them to the alt text."""
    look = {"ha": "center", "va": "center", "linespacing": 1.35}
    axes.text(x, y, words, fontsize=points, color=colour, **look)
    describe(axes, "", [words])


def size(gib: float) -> str:
    """Return GiB for people: 24 GiB, 4.1 TiB."""
    for unit in ("GiB", "TiB"):
        if gib < 1000:
            return f"{gib:.0f} {unit}" if gib >= 10 else f"{gib:.1f} {unit}"
        gib /= 1024
    return f"{gib:.1f} PiB"
