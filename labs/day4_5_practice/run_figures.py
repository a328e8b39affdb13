"""Figures of many runs side by side, and of their CO2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.charts.base import BLUE, GREY, ORANGE, Picture
from course.charts.primitives import describe, label, legend, stack
from course.text import digits

PARTS = {"gpus": "GPUs", "host": "rest of the node", "building": "cooling and building"}
FACTOR = 20  # a setting whose values differ by so much is shown in factors


def plot_together(table: pd.DataFrame, fields: Sequence[str], result: str = "val_top1") -> Picture:
    """Draw a hundred runs side by side, the best on the left, with their settings below.

    A setting that goes along with the result changes from left to right; one that does not is
    speckled.

    Args:
        table: what `together` returns.
        fields: settings to show: numbers or words.
    """
    picture = Picture(10, 2 + 0.55 * len(fields))
    above, *below = picture.panels(
        1 + len(fields), sharex=True, height_ratios=[3, *([1] * len(fields))]
    )
    above.bar(range(len(table)), table[result], width=1.0, color=BLUE)
    above.set_ylabel(result, rotation=0, ha="right", va="center", fontsize=9)
    above.margins(x=0)
    describe(above, "", [f"from {table[result].max():.3f} to {table[result].min():.3f}"])
    for axes, name in zip(below, fields):
        _cells(axes, table[name], name)
    machine = "; ".join(dict.fromkeys(table["machine"]))
    words = f"{len(table)} runs, the best on the left; light is small, dark is large\n{machine}"
    below[-1].set_xlabel(words, fontsize=9)
    return picture


def _cells(axes: Axes, values: pd.Series, name: str) -> None:
    """Draw one setting of all runs: small numbers light, large ones dark; a colour for a word."""
    if is_number := pd.api.types.is_numeric_dtype(values):
        low, high = values.min(), values.max()
        text = f"{digits(low)} … {digits(high)}"
        places = np.log(values) if low > 0 and high / low >= FACTOR else values
    else:
        places, kinds = pd.factorize(values)
        text = f"{len(kinds)} kinds"
    look = {"cmap": "viridis_r" if is_number else "tab10", "interpolation": "nearest"}
    axes.imshow(np.array([places], dtype=float), aspect="auto", **look)
    axes.set_yticks([0], [f"{name}\n{text}"], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    describe(axes, name, [f"{text}, of the best run {values.iloc[0]}"])


def plot_grams(table: pd.DataFrame) -> Picture:
    """Draw the CO2 of the same joules on each grid, by what uses them (a table of `by_grid`)."""
    picture = Picture(10, 3.2)
    axes = picture.panel()
    parts = {words: table[part] for part, words in PARTS.items()}
    stack(axes, list(table["grid"]), parts, colours=(BLUE, ORANGE, GREY), room=1.08)
    source = table["source"].iloc[0].split(",")[0]
    label(axes, xlabel=f"grams of CO₂ equivalents ({table['year'].iloc[0]}: {source})")
    legend(picture)
    return picture
