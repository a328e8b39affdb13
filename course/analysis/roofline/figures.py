"""Pictures of what holds a run: the roofline, and a convolution in two layouts."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from course.analysis.roofline.bounds import Ceilings
from course.charts.base import DARK, FORMAT_COLOURS, Picture
from course.charts.primitives import label, scatter_fit
from course.text import digits

MARKERS = "osD^v<>PXph"
OFFSET = {"textcoords": "offset points", "fontsize": 9, "color": DARK}
LABEL_GAP = 1.35  # between the labels of two ceilings, as a factor


def plot_roofline(ceilings: Ceilings, points: pd.DataFrame) -> Picture:
    """Runs under their machine's ceilings; both axes grow by factors.

    The slope is the memory, a level line the arithmetic in one precision. A run's distance
    below its roof (the thin line) is what is left to gain without changing what is computed. The
    list beside the picture has the fastest run on top.

    Args:
        points: what `roofline.points` returns.
    """
    picture = Picture(10, 4.4)
    axes = picture.panel()
    ridges = [rate / ceilings.bytes_per_s for rate in ceilings.flop_per_s.values()]
    left = min(*ridges, points["flop_per_byte"].min()) / 4
    right = max(*ridges, points["flop_per_byte"].max()) * 8
    bottom = min(left * ceilings.bytes_per_s, points["flop_per_s"].min()) / 2
    top = max(*ceilings.flop_per_s.values(), points["flop_per_s"].max()) * 2.5
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    for axis in (axes.xaxis, axes.yaxis):  # 1, 2, 5 of each decade, in words
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if right / left < 1e3 else (1,)))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: _unit(value, ""))
    _roofs(axes, ceilings, left, right)
    _points(axes, points)
    picture.legend(loc="outside right upper", frameon=False, fontsize=9, labelspacing=0.7)
    title = "\n".join([*dict.fromkeys(points["machine"]), f"ceilings: {ceilings.source}"])
    label(axes, title, xlabel="FLOP for each byte that is moved", ylabel="FLOP per second")
    return picture


def _roofs(axes: Axes, ceilings: Ceilings, left: float, right: float) -> None:
    by_rate: dict[float, list[str]] = {}
    for precision, rate in ceilings.flop_per_s.items():
        by_rate.setdefault(rate, []).append(precision)
    slope = np.array([left, max(by_rate) / ceilings.bytes_per_s])
    axes.plot(slope, slope * ceilings.bytes_per_s, color=DARK, lw=2)
    at = left * 1.3
    words = f"memory: {_unit(ceilings.bytes_per_s, 'B/s')}"
    axes.annotate(words, (at, at * ceilings.bytes_per_s), (10, -4), va="top", **OFFSET)
    higher, near = np.inf, False
    for rate in sorted(by_rate, reverse=True):  # a label under its line needs more room below it
        near = higher < rate * (LABEL_GAP**3 if near else LABEL_GAP)
        precisions, higher = by_rate[rate], rate
        colour = FORMAT_COLOURS[precisions[0]]
        axes.plot([rate / ceilings.bytes_per_s, right], [rate, rate], lw=2, color=colour)
        axes.text(
            right,
            rate * (0.93 if near else 1.08),  # under its line, where another is just above
            f"{', '.join(precisions)}: {_unit(rate, 'FLOP/s')}",
            ha="right",
            va="top" if near else "bottom",
            fontsize=9,
            color=colour,
        )


def _points(axes: Axes, points: pd.DataFrame) -> None:
    points = points.assign(twice=points.duplicated(["rung", "precision"], keep=False))
    rows = list(points.sort_values("flop_per_s", ascending=False).itertuples())
    places, colours = {}, [FORMAT_COLOURS[row.precision] for row in rows]
    for row, colour in zip(rows, colours):
        bound = row.flop_per_s / row.share
        axes.vlines(row.flop_per_byte, row.flop_per_s, bound, color=colour, lw=0.8, alpha=0.5)
        name = f"{row.rung}, {row.precision}" + f", batch {row.batch_size}" * row.twice
        words = f"{name}:\n{row.share:.0%} of the {row.nearer} bound"
        places[words] = [row.flop_per_byte], [row.flop_per_s]
    scatter_fit(axes, places, colours=colours, markers=MARKERS, size=8)


def _unit(value: float, unit: str) -> str:
    """A rate with the prefix that leaves it between 1 and 1000."""
    power = min(max(int(np.log10(value) // 3), 0), 5)
    return f"{digits(value / 1000**power)} {['', 'k', 'M', 'G', 'T', 'P'][power]}{unit}"
