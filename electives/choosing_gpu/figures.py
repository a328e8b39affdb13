"""The figure of speed by power."""

from __future__ import annotations

import numpy as np
import pandas as pd

from course.charts import BLUE, GREY, Picture, label, mark

PER_JOULE = (2, 4, 8)  # dotted lines
# Of labels that would cover each other, or a dotted line.
SIDES = {"V100": "left", "RTX 3090": "above", "L40S": "below", "T4": "above", "A10": "left"}
SIDES |= {"B200": "left", "RTX 5090": "below"}


def plot_energy(table: pd.DataFrame) -> Picture:
    """Draw each GPU's estimated images per second by its watts, with lines of equal energy.

    Args:
        table: from `lab.estimate_speeds()`.
    """
    words = "; ".join(f"{gpu}: {row.images_per_s / row.watts:.1f}" for gpu, row in table.iterrows())
    picture = Picture(8, 5.2, f"Estimated images per second by watts. Images per joule: {words}")
    axes = picture.panel()
    lowest, highest = 0.8 * table["watts"].min(), 1.5 * table["watts"].max()
    watts = np.array([lowest, highest])
    for each in PER_JOULE:
        axes.plot(watts, each * watts, ":", color=GREY, lw=1)
        mark(axes, lowest, each * lowest, f"{each} images per joule", "left", colour=GREY, size=8)
    axes.plot(table["watts"], table["images_per_s"], "o", color=BLUE)
    for gpu, row in table.iterrows():
        mark(axes, row["watts"], row["images_per_s"], str(gpu), SIDES.get(str(gpu), "right"))
    ends = {"xscale": "log", "yscale": "log", "xlim": (0.5 * lowest, highest)}
    label(axes, xlabel="watts at full power", ylabel="images per second, estimated", **ends)
    ticks = [70, 150, 300, 700, 1000]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    return picture
