"""Figures of many runs side by side, and of CO2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from course.charts.base import BLUE, GREY, ORANGE, Picture
from course.charts.primitives import describe, label, legend, stack
from course.text import digits

PARTS = {"gpus": "GPUs", "host": "rest of the node", "building": "cooling and building"}


def plot_run_comparison(table: pd.DataFrame, fields: Sequence[str]) -> Picture:
    """Draw the accuracy of many runs, the best on the left, with their settings below.

    A setting that goes along with accuracy changes from left to right: light cells are small
    numbers, dark ones large; words have a colour each.

    Args:
        table: from `runs_table`.
        fields: settings to show.
    """
    picture = Picture(10, 2 + 0.55 * len(fields))
    heights = [3, *([1] * len(fields))]
    above, *below = picture.panels(1 + len(fields), sharex=True, height_ratios=heights)
    accuracy = table["val_top1"]
    above.bar(range(len(table)), accuracy, width=1.0, color=BLUE)
    above.set_ylabel("val_top1", rotation=0, ha="right", va="center", fontsize=9)
    above.margins(x=0)
    describe(above, "", [f"from {accuracy.max():.3f} to {accuracy.min():.3f}"])
    for axes, field in zip(below, fields):
        values = table[field]
        if is_number := pd.api.types.is_numeric_dtype(values):
            low, high = values.min(), values.max()
            text = f"{digits(low)} … {digits(high)}"
            numbers = np.log(values) if low > 0 and high / low >= 20 else values
        else:
            numbers, kinds = pd.factorize(values)
            text = f"{len(kinds)} kinds"
        style = {"cmap": "viridis_r" if is_number else "tab10", "interpolation": "nearest"}
        axes.imshow(np.array([numbers], dtype=float), aspect="auto", **style)
        axes.set_yticks([0], [f"{field}\n{text}"], fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        describe(axes, field, [f"{text}, of the best run {values.iloc[0]}"])
    machine = "; ".join(table["machine"].unique())
    words = f"{len(table)} runs, the best on the left; light is small, dark is large\n{machine}"
    below[-1].set_xlabel(words, fontsize=9)
    return picture


def plot_grams(table: pd.DataFrame) -> Picture:
    """Draw the CO2 of the same energy on each grid (a table of `carbon_by_grid`)."""
    picture = Picture(10, 3.2)
    axes = picture.panel()
    parts = {words: table[part] for part, words in PARTS.items()}
    stack(axes, list(table["grid"]), parts, colours=(BLUE, ORANGE, GREY), room=1.08)
    label(axes, xlabel="grams of CO₂ equivalents (2023: Ember)")
    legend(picture)
    return picture
