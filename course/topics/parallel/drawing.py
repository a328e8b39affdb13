"""A picture of an MLP that two ranks share out."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.charts.base import BLUE, GREY, ORANGE, Picture, words_on

OF_RANKS = (BLUE, ORANGE)


def mlp() -> Picture:
    """Which numbers of x → gelu(x A) B each of two ranks has, and where they are added up."""
    picture = Picture(9, 2.6)
    axes = picture.add_subplot()
    _block(axes, 0.0, "x", (1.2, 1.6), None, "all of it on both")
    _sign(axes, 1.5, "×")
    _block(axes, 1.8, "A", (2.0, 1.2), "columns", "columns")
    _sign(axes, 4.55, "→ gelu →")
    _block(axes, 5.3, "hidden", (2.0, 1.6), "columns", "columns: nothing is sent")
    _sign(axes, 7.6, "×")
    _block(axes, 7.9, "B", (1.2, 2.0), "rows", "rows")
    _sign(axes, 9.4, "=")
    for at, colour in enumerate(OF_RANKS):
        axes.add_patch(Rectangle((9.7 + 1.7 * at, -0.8), 1.2, 1.6, color=colour))
        axes.text(0.0 + 1.2 * at, 1.3, f"rank {at}", color=colour, fontsize=10, weight="bold")
    _sign(axes, 11.15, "+")
    axes.text(11.15, -1.3, "parts of a sum: one all-reduce", ha="center", va="center", fontsize=9)
    axes.set_xlim(-0.3, 12.9)
    axes.set_ylim(-1.5, 1.6)
    axes.set_axis_off()
    return picture


def _block(
    axes: Axes, left: float, name: str, size: tuple[float, float], cut: str | None, said: str
) -> None:
    width, height = size
    bottom = -height / 2
    if cut is None:
        parts = [(left, bottom, width, height, GREY)]
    elif cut == "columns":
        half = width / 2
        parts = [(left + half * at, bottom, half, height, each) for at, each in enumerate(OF_RANKS)]
    else:
        half = height / 2
        parts = [(left, half * (0 - at), width, half, each) for at, each in enumerate(OF_RANKS)]
    for x, y, w, h, colour in parts:
        axes.add_patch(Rectangle((x, y), w, h, color=colour))
    colour = words_on(parts[0][-1])
    axes.text(left + width / 2, 0, name, ha="center", va="center", fontsize=11, color=colour)
    axes.text(left + width / 2, -1.3, said, ha="center", va="center", fontsize=9)


def _sign(axes: Axes, at: float, sign: str) -> None:
    axes.text(at, 0, sign, ha="center", va="center", fontsize=10)
