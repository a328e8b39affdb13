"""The memory of one training step over time, from a recorded snapshot of CUDA's allocator."""

from __future__ import annotations

import numpy as np
import pandas as pd

from course.charts import (
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
)
from course.runs import recordings

MACHINE, PART = "nvidia-h100", "memory_snapshot"
CATEGORY_COLOURS = {  # from bottom to top
    "weights": BLUE,
    "optimizer": GREEN,
    "images": PURPLE,
    "gradients": ORANGE,
    "activations": SKY,
    "temporary": GREY,
}


def recorded_memory() -> pd.DataFrame:
    """Return each allocation and free of one recorded step of ResNet-50 with AdamW.

    Columns: ms since the step began on the host; bytes, negative if freed; category; phase
    ("before": what the step began with); where, the line of the network or script. The table's
    `attrs` have machine, batch_size, image_px and peak_bytes.
    """
    table = pd.read_csv(recordings.trace_folder(MACHINE) / "memory.csv.gz", keep_default_na=False)
    saved = recordings.part(MACHINE, PART)
    date = recordings.origin({"date": saved["date"], "versions": {"torch": saved["torch"]}})
    table.attrs = saved | {"machine": f"{saved['machine']} ({date})"}
    return table


def live_bytes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes in use after each event: one column per category, in drawing order."""
    changes = pd.get_dummies(table["category"]).mul(table["bytes"], axis=0)
    return changes.reindex(columns=[*CATEGORY_COLOURS], fill_value=0).cumsum()


def plot_step_memory() -> Picture:
    """Plot the memory of the recorded step over time, by category, with the ends of its phases."""
    table = recorded_memory()
    live = live_bytes(table) / 2**30
    picture = Picture(9.5, 4.2)
    axes = picture.panel()
    bottom = 0 * live["weights"]
    for name, colour in CATEGORY_COLOURS.items():
        top = bottom + live[name]
        axes.fill_between(table["ms"], bottom, top, step="post", color=colour, lw=0, label=name)
        bottom = top
    for phase, rows in table[table["phase"] != "before"].groupby("phase", sort=False):
        if np.ptp(rows["ms"]) < 0.02 * table["ms"].max():  # no room for a name
            continue
        axes.axvline(rows["ms"].iloc[0], color=DARK, lw=0.7, ls=":")
        axes.text(rows["ms"].iloc[0], 1.05 * bottom.max(), f" {phase}", fontsize=8, color=DARK)
    at_peak = live.loc[bottom.idxmax()]
    describe(axes, "GiB at the peak", [f"{name} {value:.2f}" for name, value in at_peak.items()])
    saved = table.attrs
    label(
        axes,
        f"ResNet-50, batch {saved['batch_size']}, AdamW. Peak: {bottom.max():.2f} GiB in tensors, "
        f"{saved['peak_bytes'] / 2**30:.2f} GiB in the allocator's blocks\n{saved['machine']}",
        xlabel="milliseconds since the step began on the host",
        ylabel="GiB in tensors",
        xlim=(0, table["ms"].max()),
        ylim=(0, 1.12 * bottom.max()),
    )
    legend(picture, 6)
    return picture
