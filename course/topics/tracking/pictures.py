"""Pictures of many runs: a line each, and what they stand for in CO2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.plots.base import BLUE, GREY, ORANGE, Picture, clean
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
    panels[-1].set_xlabel(f"{len(table)} runs, the best on the left")
    return picture


def _strip(axes: Axes, values: pd.Series, name: str) -> None:
    """One setting of all runs: small values light, large ones dark; words as they come."""
    places, low, high = _scaled(values)
    axes.imshow(places[None], aspect="auto", cmap="viridis_r", interpolation="nearest")
    axes.set_yticks([0], [f"{name}\n{low} … {high}"], fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.tick_params(axis="y", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _scaled(values: pd.Series) -> tuple[np.ndarray, str, str]:
    """Places between 0 and 1, and the ends in words."""
    if not pd.api.types.is_numeric_dtype(values):
        words = sorted(set(values))
        places = values.map({word: at for at, word in enumerate(words)}).to_numpy(float)
        return places / max(len(words) - 1, 1), words[0] or "none", words[-1]
    low, high = float(values.min()), float(values.max())
    numbers = values.to_numpy(float)
    if low > 0 and high / low >= FACTOR:
        numbers, ends = np.log(numbers), (np.log(low), np.log(high))
    else:
        ends = (low, high)
    return (numbers - ends[0]) / max(ends[1] - ends[0], 1e-12), digits(low), digits(high)


def grams(table: pd.DataFrame) -> Picture:
    """What the same joules stand for on each grid, by what takes them.

    Args:
        table: what `by_grid` returns.
    """
    said = "; ".join(f"{row.grid} {row.grams:.0f} g" for row in table.itertuples())
    picture = Picture(10, 3.2, f"Grams of CO2 for the same runs on grids: {said}")
    axes = picture.add_subplot()
    ends = np.zeros(len(table))
    words = {"gpus": "GPUs", "host": "rest of the node", "building": "cooling and building"}
    for part, colour in PARTS.items():
        axes.barh(table["grid"], table[part], left=ends, color=colour, label=words[part])
        ends = ends + table[part].to_numpy()
    for place, each in enumerate(table["grams"]):
        axes.text(each, place, f" {each:.0f}", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel(f"grams of CO2 equivalents ({table['year'].iloc[0]}: {_sources(table)})")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    axes.margins(x=0.08)
    clean(axes)
    return picture


def _sources(table: pd.DataFrame) -> str:
    return table["source"].iloc[0].split(",")[0]
