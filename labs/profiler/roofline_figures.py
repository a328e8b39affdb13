"""The figure of the roofline."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from course.charts import DARK, FORMAT_COLOURS, Picture, label, lines, scatter_fit
from trainspeed.rates import Ceilings

MARKERS = "osD^v<>PXph"


def plot_roofline(ceilings: Ceilings, points: pd.DataFrame) -> Picture:
    """Draw runs below their machine's ceilings, on logarithmic axes.

    The slope is the memory bandwidth, a level line the compute rate in one precision. The thin
    line above a run shows what could be gained without changing what is computed. The legend has
    the fastest run first.

    Args:
        points: from `roofline.points`.
    """
    picture = Picture(10, 4.4)
    axes = picture.panel()
    rates, bandwidth = [*ceilings.flop_per_s.values()], ceilings.bytes_per_s
    left = min(*rates, bandwidth * points["flop_per_byte"].min()) / bandwidth / 4
    right = max(*rates, bandwidth * points["flop_per_byte"].max()) / bandwidth * 3
    bottom = min(left * bandwidth, points["flop_per_s"].min()) / 2
    top = 2 * max(*rates, points["flop_per_s"].max())
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    for axis in (axes.xaxis, axes.yaxis):  # 1, 2, 5 of each decade
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if right / left < 1e3 else (1,)))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(EngFormatter())
    slope = np.array([left, max(rates) / bandwidth])
    memory = f"memory: {EngFormatter('B/s', places=2)(bandwidth)}"
    lines(axes, {memory: (slope, slope * bandwidth)}, colours=DARK)
    for precision, rate in sorted(ceilings.flop_per_s.items(), key=itemgetter(1), reverse=True):
        words = f"{precision}: {EngFormatter('FLOP/s', places=0)(rate)}"
        level = {words: ([rate / bandwidth, right], [rate, rate])}
        lines(axes, level, colours=FORMAT_COLOURS[precision])
    _draw_runs(axes, points)
    picture.legend(loc="outside right upper", frameon=False, fontsize=9, labelspacing=0.7)
    title = "\n".join([*points["machine"].unique(), f"ceilings: {ceilings.source}"])
    label(axes, title, xlabel="FLOP per byte moved", ylabel="FLOP per second")
    return picture


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
