"""Pictures of ways that trade time for memory: what a pass takes, and which way is worth it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course.analysis.memory import NO_STRATEGY
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
)
from course.charts.primitives import bars, heading, label, legend, lines, mark, stack
from course.text import digits
from labs.day4_1_memory.measurements import is_best

if TYPE_CHECKING:
    from course.training.memory_prediction import Prediction
    from labs.day4_2_fsdp.prediction import Share

KINDS = {
    "all kept": BLUE,
    "in micro-batches": SKY,
    "computed again": ORANGE,
    "both": GREEN,
    "kept on the host": DARK,
}
NEAR = (6, 25)  # GiB and images/s: dots so near have their names on different sides
PARTS = {
    "weights_gib": "weights",
    "gradients_gib": "gradients",
    "optimizer_gib": "optimizer state",
    "gathered_gib": "gathered",
    "activations_gib": "activations",
    "other_gib": "batch, and backward's own",
}
PART_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)


def plot_held(told: Mapping[str, Prediction | Share]) -> Picture:
    """Draw what holds the memory at its peak, a bar for each way.

    Args:
        told: what `memory.predict` or `sharding.predict` returns for each, by its name.
    """
    picture = Picture(10, 1.1 + 0.55 * len(told))
    axes = picture.panel()
    parts = {
        word: [getattr(each, name, 0) for each in told.values()] for name, word in PARTS.items()
    }
    stack(axes, list(told), parts, unit=" GiB", colours=PART_COLOURS, room=1.12)
    label(axes, xlabel="GiB, predicted")
    legend(picture, len(PARTS))
    return picture


def plot_passes(table: pd.DataFrame, machine: str) -> Picture:
    """Images per second (left) and milliseconds a pass (right), over the images in one pass.

    Args:
        table: what `memory.ways` returns, of runs that differ in their micro-batch alone.
    """
    table = table.sort_values("at_once")
    picture = Picture(10, 3.6)
    left, right = picture.panels(1, 2)
    at_once = list(table["at_once"])
    bars(left, at_once, table["images_per_s"], colours=BLUE, upright=True, room=1.1)
    label(left, "images per second", size=10, xlabel="images in one pass")
    took = table["pass_s"] * 1e3
    lines(right, {"": (range(len(table)), took)}, colours=ACCENT, marker="o")
    for place, each in enumerate(took):
        mark(right, place, each, digits(each), "above")
    label(right, "milliseconds a pass", size=10, xlabel="images in one pass")
    right.set(xticks=range(len(table)), xticklabels=at_once, ylim=(0, 1.2 * took.max()))
    heading(picture, machine)
    return picture


def plot_front(table: pd.DataFrame, machine: str) -> Picture:
    """Images per second over GiB: each way a dot, and a line through those that none beats.

    Args:
        table: what `memory.ways` returns.
    """
    ok = table[table["status"] == "ok"]
    picture = Picture(10, 5.2)
    axes = picture.panel()
    line = ok[is_best(ok)].sort_values("peak_gib")
    axes.step(line["peak_gib"], line["images_per_s"], where="post", color=GREY, lw=1.2, zorder=1)
    named: list[tuple[float, float]] = []
    for _, row in ok.sort_values("peak_gib").iterrows():
        place = row["peak_gib"], row["images_per_s"]
        axes.plot(*place, "o", color=_colour(row["way"]), ms=8, zorder=2)
        near = [
            each
            for each in named
            if place[0] - each[0] < NEAR[0] and abs(place[1] - each[1]) < NEAR[1]
        ]
        _named(axes, row, above=len(near) % 2 == 1)
        named.append(place)
    marks = [Patch(color=colour, label=kind) for kind, colour in KINDS.items()]
    axes.legend(handles=marks, frameon=False, fontsize=9, loc="lower right")
    axes.set(xlabel="GiB at the peak", ylabel="images per second", xlim=(0, None))
    axes.set_ylim(0, 1.1 * ok["images_per_s"].max())
    heading(picture, machine)
    return picture


def _colour(way: str) -> str:
    again, parts = "again" in way, "at once" in way
    if "host" in way:
        return KINDS["kept on the host"]
    if again:
        return KINDS["both" if parts else "computed again"]
    return KINDS["in micro-batches" if parts else NO_STRATEGY]


def _named(axes: Axes, row: pd.Series, *, above: bool) -> None:
    name = row["way"].replace(" again,", ",")
    name = f"{row['batch_size']:.0f} at once" if name == NO_STRATEGY else name
    axes.annotate(
        name,
        (row["peak_gib"], row["images_per_s"]),
        (7, 5 if above else -11),
        textcoords="offset points",
        fontsize=8,
        color=DARK,
    )
