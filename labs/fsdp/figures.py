"""Figures of a step in units, and of what sharding strategies cost."""

from __future__ import annotations

import pandas as pd

from course.charts import BLUE, GREEN, GREY, ORANGE, Picture, label, legend, limit, stack, timeline
from labs.fsdp.measurements import TARGET_MEMORY, TARGET_SPEED

FORWARD, BACKWARD, MESSAGE = 1.0, 2.0, 0.6  # made-up times of a unit
GAP = 0.03  # between events


def plot_units() -> Picture:
    """Draw when three units are gathered, computed and reduced in a step of FSDP2."""
    colours = dict(zip("123", (BLUE, GREEN, ORANGE)))
    lanes: dict[str, list] = {"all-gathers": [], "computation": [], "reduce-scatters": []}

    def add(lane: str, begin: float, length: float, unit: str) -> float:
        lanes[lane].append((begin, length - GAP, colours[unit], unit))
        return begin + length

    now = middle = 0.0
    for order, length in (("123", FORWARD), ("321", BACKWARD)):
        middle, now = now, add("all-gathers", now, MESSAGE, order[0])  # nothing computes yet
        for place, unit in enumerate(order):
            for later in order[place + 1 :][:1]:
                add("all-gathers", now, MESSAGE, later)  # while this unit computes
            now = add("computation", now, length, unit)
            if length == BACKWARD:
                add("reduce-scatters", now, MESSAGE, unit)
    picture = Picture(10, 2.2)
    axes = picture.panel()
    timeline(axes, lanes)
    axes.axvline(middle, color=GREY, lw=1)
    axes.set(xlim=(0, now + MESSAGE), xticks=[])
    label(axes, xlabel="forward, and right of the line backward; the numbers are units")
    return picture


def plot_comparison(table: pd.DataFrame) -> Picture:
    """Draw images/s and peak memory, and the lab's target (a table of `compare_with_ddp`)."""
    table = table[table["images_per_s"].notna()].sort_values("images_per_s", ascending=False)
    picture = Picture(9.5, 1.4 + 0.33 * len(table))
    left, right = picture.panels(1, 2, sharey=True)
    for axes, column, title, share in (
        (left, "images_per_s", "images/s of all GPUs", TARGET_SPEED),
        (right, "peak_gib", "peak GiB per GPU", TARGET_MEMORY),
    ):
        values, reached = table[column], table["reached"]
        parts = {"reaches the goal": values.where(reached), "does not": values.mask(reached)}
        style = {"inside": "{value:.3g}", "words": [""] * len(table), "colours": (GREEN, BLUE)}
        stack(axes, list(table.index), parts, room=1.05, **style)
        if "ddp" in table.index:
            limit(axes, share * values["ddp"], along="x")
        label(axes, title, size=10, xlabel=f"dashed: {share:.0%} of DDP's")
    legend(picture)
    return picture
