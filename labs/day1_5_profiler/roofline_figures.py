"""The figure of the roofline."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from course.analysis.roofline import Ceilings
from course.charts.base import DARK, FORMAT_COLOURS, Picture
from course.charts.primitives import label, scatter_fit
from course.text import digits

MARKERS = "osD^v<>PXph"
LABEL_GAP = 1.35  # between the labels of two ceilings, as a factor


def plot_roofline(ceilings: Ceilings, points: pd.DataFrame) -> Picture:
    """Draw runs below their machine's ceilings, on logarithmic axes.

    The slope is the memory bandwidth, a level line the compute rate in one precision. The thin
    line above a run shows what could be gained without changing what is computed. The legend
    begins with the fastest run.

    Args:
        points: from `roofline.points`.
    """
    picture = Picture(10, 4.4)
    axes = picture.panel()
    rates, bandwidth = [*ceilings.flop_per_s.values()], ceilings.bytes_per_s
    left = min(*rates, bandwidth * points["flop_per_byte"].min()) / bandwidth / 4
    right = max(*rates, bandwidth * points["flop_per_byte"].max()) / bandwidth * 8
    bottom = min(left * bandwidth, points["flop_per_s"].min()) / 2
    top = max(*rates, points["flop_per_s"].max()) * 2.5
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    for axis in (axes.xaxis, axes.yaxis):  # 1, 2, 5 of each decade
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if right / left < 1e3 else (1,)))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(EngFormatter())
    _draw_ceilings(axes, ceilings, left, right)
    _draw_runs(axes, points)
    picture.legend(loc="outside right upper", frameon=False, fontsize=9, labelspacing=0.7)
    title = "\n".join([*points["machine"].unique(), f"ceilings: {ceilings.source}"])
    label(axes, title, xlabel="FLOP per byte moved", ylabel="FLOP per second")
    return picture


def _draw_ceilings(axes: Axes, ceilings: Ceilings, left: float, right: float) -> None:
    by_rate: dict[float, list[str]] = {}
    for precision, rate in ceilings.flop_per_s.items():
        by_rate.setdefault(rate, []).append(precision)
    slope = np.array([left, max(by_rate) / ceilings.bytes_per_s])
    axes.plot(slope, slope * ceilings.bytes_per_s, color=DARK, lw=2)
    words = f"memory: {_rate(ceilings.bytes_per_s, 'B/s')}"
    place = left * 1.3, left * 1.3 * ceilings.bytes_per_s
    style = {"textcoords": "offset points", "va": "top", "fontsize": 9, "color": DARK}
    axes.annotate(words, place, (10, -4), **style)
    higher, below = np.inf, False
    for rate in sorted(by_rate, reverse=True):
        # A label is below its line if another line is just above; then the label needs more space.
        below = higher < rate * (LABEL_GAP**3 if below else LABEL_GAP)
        precisions, higher = by_rate[rate], rate
        colour = FORMAT_COLOURS[precisions[0]]
        axes.plot([rate / ceilings.bytes_per_s, right], [rate, rate], lw=2, color=colour)
        words = f"{', '.join(precisions)}: {_rate(rate, 'FLOP/s')}"
        style = {"ha": "right", "va": "top" if below else "bottom", "fontsize": 9, "color": colour}
        axes.text(right, rate * (0.93 if below else 1.08), words, **style)


def _draw_runs(axes: Axes, points: pd.DataFrame) -> None:
    repeated = points.duplicated(["rung", "precision"], keep=False)
    table = points.assign(repeated=repeated).sort_values("flop_per_s", ascending=False)
    colours = [FORMAT_COLOURS[precision] for precision in table["precision"]]
    places = {}
    for row, colour in zip(table.itertuples(), colours):
        bound = row.flop_per_s / row.share
        axes.vlines(row.flop_per_byte, row.flop_per_s, bound, color=colour, lw=0.8, alpha=0.5)
        name = f"{row.rung}, {row.precision}" + f", batch {row.batch_size}" * row.repeated
        words = f"{name}:\n{row.share:.0%} of the {row.bound} bound"
        places[words] = [row.flop_per_byte], [row.flop_per_s]
    scatter_fit(axes, places, colours=colours, markers=MARKERS, size=8)


def _rate(value: float, unit: str) -> str:
    """Format a rate with the prefix that leaves it between 1 and 1000."""
    power = int(np.log10(value) // 3)
    return f"{digits(value / 1000**power)} {' kMGTPE'[power].strip()}{unit}"
