"""Pictures of ways that trade time for memory: what a pass takes, and which way is worth it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Picture,
    clean,
    stacked_bar,
)
from course.text import digits
from course.topics.memory.traded import PLAIN, is_best
from course.training.fake.step import Prediction

KINDS = {
    "all kept": BLUE,
    "in micro-batches": SKY,
    "computed again": ORANGE,
    "both": GREEN,
    "kept on the host": DARK,
}
NEAR = (6, 25)  # GiB and images/s: dots so near have their names on different sides
PARTS = {
    "weights_gib": ("weights", BLUE),
    "gradients_gib": ("gradients", ORANGE),
    "optimizer_gib": ("optimizer state", GREEN),
    "activations_gib": ("activations", SKY),
    "other_gib": ("batch, and backward's own", GREY),
}


def held(told: Mapping[str, Prediction]) -> Picture:
    """What holds the memory at its peak, a bar for each way.

    Args:
        told: what `memory.predict` says of each, by its name.
    """
    picture = Picture(10, 1.1 + 0.55 * len(told))
    axes = picture.subplots()
    for place, each in enumerate(told.values()):
        parts = [(word, getattr(each, name), hue, "") for name, (word, hue) in PARTS.items()]
        end = stacked_bar(axes, place, parts, height=0.65)
        axes.text(end, place, f" {digits(end)} GiB", va="center", fontsize=9, color=DARK)
    axes.set_yticks(range(len(told)), [*told])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.12 * max(each.peak_gib for each in told.values())), xlabel="GiB, predicted")
    clean(axes)
    picture.legend(loc="outside lower center", ncols=len(PARTS), frameon=False, fontsize=9)
    return picture


def passes(table: pd.DataFrame, machine: str) -> Picture:
    """Images per second (left) and milliseconds a pass (right), over the images in one pass.

    Args:
        table: what `memory.ways` returns, of runs that differ in their micro-batch alone.
    """
    table = table.sort_values("at_once")
    picture = Picture(10, 3.6)
    left, right = picture.subplots(1, 2)
    places = np.arange(len(table))
    left.bar(places, table["images_per_s"], color=BLUE, width=0.65)
    for place, speed in zip(places, table["images_per_s"]):
        left.text(place, speed, digits(speed), ha="center", va="bottom", fontsize=9, color=DARK)
    left.set_title("images per second", loc="left", fontsize=10)
    right.plot(places, table["pass_s"] * 1e3, "o-", color=ACCENT)
    for place, took in zip(places, table["pass_s"] * 1e3):
        right.annotate(
            digits(took),
            (place, took),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=DARK,
        )
    right.set_ylim(0, 1.2 * table["pass_s"].max() * 1e3)
    right.set_title("milliseconds a pass", loc="left", fontsize=10)
    for axes in (left, right):
        axes.set_xticks(places, table["at_once"])
        axes.set_xlabel("images in one pass")
        clean(axes)
    picture.suptitle(machine, x=0.01, ha="left", fontsize=9)
    return picture


def front(table: pd.DataFrame, machine: str) -> Picture:
    """Images per second over GiB: each way a dot, and a line through those that none beats.

    Args:
        table: what `memory.ways` returns.
    """
    ok = table[table["status"] == "ok"]
    picture = Picture(10, 5.2)
    axes = picture.subplots()
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
    clean(axes)
    picture.suptitle(machine, x=0.01, ha="left", fontsize=9)
    return picture


def _colour(way: str) -> str:
    again, parts = "again" in way, "at once" in way
    if "host" in way:
        return KINDS["kept on the host"]
    if again:
        return KINDS["both" if parts else "computed again"]
    return KINDS["in micro-batches" if parts else PLAIN]


def _named(axes: Axes, row: pd.Series, *, above: bool) -> None:
    name = row["way"].replace(" again,", ",")
    name = f"{row['batch_size']:.0f} at once" if name == PLAIN else name
    axes.annotate(
        name,
        (row["peak_gib"], row["images_per_s"]),
        (7, 5 if above else -11),
        textcoords="offset points",
        fontsize=8,
        color=DARK,
    )
