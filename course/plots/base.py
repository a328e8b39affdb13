"""What every picture shares: its class, its colours, its plain frame."""

from __future__ import annotations

import io
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with colour-blindness can tell apart.
PHASE_COLOURS = {
    "load": "#E69F00",
    "forward": "#56B4E9",
    "loss": "#CC79A7",
    "backward": "#0072B2",
    "optimizer": "#009E73",
}
GREY, DARK, ACCENT = "#9A9A9A", "#333333", "#D55E00"
BLUE, SKY, ORANGE, GREEN, PURPLE = "#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7"
FORMAT_COLOURS = {"fp32": BLUE, "tf32": GREEN, "bf16": ACCENT, "fp16": PURPLE}


class Picture(Figure):
    """A figure that a notebook shows by itself, in any front end and under papermill."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=110, layout="constrained")

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def clean(axes: Axes) -> None:
    """Take away the frame's upper and right edge, and make the labels small."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def stacked_bar(
    axes: Axes, place: int, parts: Iterable[tuple[str, float, str, str]], height: float
) -> float:
    """A horizontal bar of parts: (label, width, colour, words in its middle). Where does it end?

    The legend gets the labels from the bar at place 0 alone.
    """
    begin = 0.0
    for label, width, colour, words in parts:
        shown = label if place == 0 else None
        axes.barh(place, width, left=begin, color=colour, height=height, label=shown)
        if words:
            middle = begin + width / 2
            axes.text(middle, place, words, ha="center", va="center", color="white", fontsize=9)
        begin += width
    return begin
