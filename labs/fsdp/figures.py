"""A figure of what sharding strategies cost."""

from __future__ import annotations

import pandas as pd

from course.charts import BLUE, GREEN, Picture, label, legend, limit, stack
from labs.fsdp.measurements import TARGET_MEMORY, TARGET_SPEED


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
