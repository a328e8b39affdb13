"""Figures of what each rank keeps, and of what ways of sharding cost."""

from __future__ import annotations

import pandas as pd

from course.charts.base import BLUE, GREEN, ORANGE, Picture
from course.charts.primitives import label, legend, limit, stack
from labs.day4_2_fsdp.measurements import ENOUGH, SMALLER

KINDS = {"weights": BLUE, "gradients": ORANGE, "optimizer": GREEN}
NAMES = ["ZeRO-0 (DDP)", "ZeRO-1", "ZeRO-2", "ZeRO-3"]


def plot_kept(table: pd.DataFrame) -> Picture:
    """Draw what each rank keeps (a table of `formula.kept`, or of `measured.kept`)."""
    name, kind, value = table.columns
    wide = table.pivot_table(value, name, kind, sort=False)
    names = [NAMES[each] if name == "stage" else str(each) for each in wide.index]
    picture = Picture(9, 1.2 + 0.45 * len(wide))
    axes = picture.panel()
    stack(axes, names, {each: wide[each] for each in KINDS}, colours=KINDS)
    label(axes, f"{'MiB' if value == 'mib' else 'GiB'} that each rank keeps", size=10)
    legend(picture, 6)
    return picture


def plot_ways(table: pd.DataFrame) -> Picture:
    """Draw images/s and peak memory of each way, and the lab's aim (a table of `measured.ways`)."""
    table = table[table["images_per_s"].notna()].sort_values("images_per_s", ascending=False)
    picture = Picture(9.5, 1.4 + 0.33 * len(table))
    left, right = picture.panels(1, 2, sharey=True)
    for axes, column, name, share in (
        (left, "images_per_s", "images/s of all", ENOUGH),
        (right, "peak_gib", "peak GiB of a GPU", SMALLER),
    ):
        values, reached = table[column], table["reached"]
        parts = {"reaches the aim": values.where(reached), "does not": values.mask(reached)}
        look = {"inside": "{value:.3g}", "words": [""] * len(table), "colours": (GREEN, BLUE)}
        stack(axes, list(table.index), parts, room=1.05, **look)
        if "ddp" in table.index:
            limit(axes, share * values["ddp"], along="x")
        label(axes, name, size=10, xlabel=f"dashed: {share:.0%} of DDP's")
    legend(picture)
    return picture
