"""Pictures of many runs: a line each, and what they stand for in CO2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.charts.base import BLUE, GREY, ORANGE, Picture, clean
from course.text import digits

PARTS = {"gpus": BLUE, "host": ORANGE, "building": GREY}
FACTOR = 20  # a setting whose values differ by so much is shown in factors


def together(table: pd.DataFrame, fields: Sequence[str], result: str = "val_top1") -> Picture:
    """A hundred runs, one beside the other, the best on the left: their settings below.

    A setting that goes along with the result changes from left to right; one that does not is
    speckled.

    Args:
        table: what `together` returns.
        fields: settings to show: numbers or words.
    """
    top = ", ".join(f"{name} {table[name].iloc[0]}" for name in fields)
    alt = f"{len(table)} runs by {result}, {table[result].max():.3f} to {table[result].min():.3f}"
    picture = Picture(10, 2 + 0.55 * len(fields), f"{alt}; of the best: {top}")
    panels = picture.subplots(1 + len(fields), sharex=True, height_ratios=[3, *([1] * len(fields))])
    panels[0].bar(range(len(table)), table[result], width=1.0, color=BLUE)
    panels[0].set_ylabel(result, rotation=0, ha="right", va="center", fontsize=9)
    panels[0].margins(x=0)
    clean(panels[0])
    for axes, name in zip(panels[1:], fields):
        _strip(axes, table[name], name)
    machine = "; ".join(dict.fromkeys(table["machine"]))
    panels[-1].set_xlabel(
        f"{len(table)} runs, the best on the left; light is small, dark is large\n{machine}",
        fontsize=9,
    )
    return picture


def _strip(axes: Axes, values: pd.Series, name: str) -> None:
    """One setting of all runs: small numbers light, large ones dark; a colour for each word."""
    if pd.api.types.is_numeric_dtype(values):
        places, said = _scaled(values.to_numpy(float))
        colours = "viridis_r"
    else:
        kinds = [*dict.fromkeys(values)]
        places, said = values.map(kinds.index).to_numpy(float), f"{len(kinds)} kinds"
        colours = "tab10"
    axes.imshow(places[None], aspect="auto", cmap=colours, interpolation="nearest")
    axes.set_yticks([0], [f"{name}\n{said}"], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _scaled(numbers: np.ndarray) -> tuple[np.ndarray, str]:
    """Numbers whose distances are to be seen, in factors where they differ much; the ends."""
    low, high = numbers.min(), numbers.max()
    said = f"{digits(low)} … {digits(high)}"
    return (np.log(numbers) if low > 0 and high / low >= FACTOR else numbers), said


def grams(table: pd.DataFrame) -> Picture:
    """What the same joules stand for on each grid, by what takes them.

    Args:
        table: what `by_grid` returns.
    """
    said = "; ".join(f"{row.grid} {digits(row.grams)} g" for row in table.itertuples())
    picture = Picture(10, 3.2, f"Grams of CO2 for the same runs on grids: {said}")
    axes = picture.add_subplot()
    ends = np.zeros(len(table))
    words = {"gpus": "GPUs", "host": "rest of the node", "building": "cooling and building"}
    for part, colour in PARTS.items():
        axes.barh(table["grid"], table[part], left=ends, color=colour, label=words[part])
        ends = ends + table[part].to_numpy()
    for place, each in enumerate(table["grams"]):
        axes.text(each, place, f" {digits(each)}", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel(f"grams of CO₂ equivalents ({table['year'].iloc[0]}: {_sources(table)})")
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.margins(x=0.08)
    clean(axes)
    return picture


def _sources(table: pd.DataFrame) -> str:
    return table["source"].iloc[0].split(",")[0]
