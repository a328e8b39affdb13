"""Figures of tensor and pipeline parallelism: shards of an MLP, steps, cuts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.colors import ListedColormap

from course.charts.base import BLUE, GREEN, GREY, ORANGE, SKY, Picture, words_on
from course.charts.primitives import bars, label, legend, limit, timeline
from course.training.evidence.pipeline_passes import BACKWARD, FORWARD, INPUT, WEIGHT
from labs.day4_3_tensor_parallel.schedules import ideal_step_of, idle_share, measured_step
from labs.day4_3_tensor_parallel.stages import stage_ranges

if TYPE_CHECKING:
    from course.runs.run import Run

# By the kind of a pass: the colour of the rank's first stage, and of its second.
COLOURS = {
    FORWARD: (SKY, "#A6D8F4"),
    BACKWARD: (BLUE, "#5B9FCB"),
    INPUT: (ORANGE, "#F2CA73"),
    WEIGHT: (GREEN, "#5CBE9F"),
}
NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT: "backward: inputs",
    WEIGHT: "backward: weights",
}
COLUMNS = {"weights_m": "weights", "gflop": "GFLOP", "ms": "ms, measured here"}
# x → gelu(x A) B: each matrix's name, left edge, width and height, the owners of its parts (rank
# 0, rank 1, or 2 for both), and the words below it.
OWNERS = (BLUE, ORANGE, GREY)
MATRICES = (
    ("x", 0, 1.2, 1.6, [[2]], "all of it on both"),
    ("A", 1.8, 2, 1.2, [[0, 1]], "columns"),
    ("hidden", 5.3, 2, 1.6, [[0, 1]], "columns: nothing is sent"),
    ("B", 7.9, 1.2, 2, [[0], [1]], "rows"),
    ("", 9.7, 1.2, 1.6, [[0]], ""),
    ("", 11.4, 1.2, 1.6, [[1]], ""),
)
SIGNS = {1.5: "×", 4.55: "→ gelu →", 7.6: "×", 9.4: "=", 11.15: "+"}


def plot_mlp_shards() -> Picture:
    """Draw which parts of x → gelu(x A) B each of two ranks has, and where they are added."""
    alt = "Both ranks have x; each has half of the columns of A and of hidden, and half of B's rows"
    picture = Picture(9, 2.6, f"{alt}; an all-reduce adds the two products")
    axes = picture.panel()
    style = {"ha": "center", "va": "center"}
    for name, left, width, height, owners, words in MATRICES:
        place = {"extent": (left, left + width, -height / 2, height / 2), "aspect": "auto"}
        axes.imshow(owners, cmap=ListedColormap(OWNERS), vmin=0, vmax=2, **place)
        ink = words_on(OWNERS[owners[0][0]])
        axes.text(left + width / 2, 0, name, fontsize=11, color=ink, **style)
        axes.text(left + width / 2, -1.3, words, fontsize=9, **style)
    for rank, colour in enumerate(OWNERS[:2]):
        axes.text(1.2 * rank, 1.3, f"rank {rank}", color=colour, fontsize=10, weight="bold")
    for place, sign in SIGNS.items():
        axes.text(place, 0, sign, fontsize=10, **style)
    axes.text(11.15, -1.3, "parts of a sum: one all-reduce", fontsize=9, **style)
    axes.set(xlim=(-0.3, 12.9), ylim=(-1.5, 1.6))
    axes.set_axis_off()
    return picture


def plot_run(run: Run) -> Picture:
    """Draw a run's step above the ideal step of its schedule."""
    machine = f": {run.record.machine}" if run.is_recorded else ""
    measured = f"{run.config.pipeline}, measured{machine}"
    return plot_steps({measured: measured_step(run), "ideal": ideal_step_of(run)})


def plot_steps(tables: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw steps below each other, on one axis of time: a row per rank, a bar per pass.

    Args:
        tables: by title, from `measured_step` or `ideal_step`.
    """
    ranks = [table["rank"].nunique() for table in tables.values()]
    picture = Picture(10, 0.75 + 0.55 * len(ranks) + 0.36 * sum(ranks))
    panels = picture.panels(len(ranks), sharex=True, height_ratios=ranks)
    end = max(table["end_ms"].max() for table in tables.values())
    for axes, (title, table), count in zip(panels, tables.items(), ranks):
        lanes: dict[str, list] = {f"rank {rank}": [] for rank in range(count)}
        for row in table.itertuples():
            length = row.end_ms - row.begin_ms
            colour = COLOURS[row.kind][int(row.stage >= count)]
            number = str(row.micro_batch) if length > 0.012 * end else ""
            bar = (row.begin_ms, length - 0.0015 * end, colour, number)  # a gap between passes
            lanes[f"rank {row.rank}"].append(bar)
        timeline(axes, lanes, heights=[0.8])
        title += f": {idle_share(table):.0%} of the ranks' time idle"
        label(axes, title, size=10, xlim=(0, 1.01 * end))
    is_unitless = all(table.attrs.get("is_unitless") for table in tables.values())
    unit = "in forward passes of a micro-batch" if is_unitless else "in ms since the first pass"
    panels[-1].set_xlabel(f"time, {unit}", fontsize=9)
    kinds = set(pd.concat(tables.values())["kind"])
    legend(picture, 4, {name: COLOURS[kind][0] for kind, name in NAMES.items() if kind in kinds})
    return picture


def plot_cuts(table: pd.DataFrame, cuts: Mapping[str, str]) -> Picture:
    """Draw each piece's share of weights, GFLOP and milliseconds, and where stages begin.

    Args:
        table: from `measure_pieces`.
        cuts: by name, from `balanced_cut`.
    """
    picture = Picture(10, 4.2)
    panels = picture.panels(len(COLUMNS), sharex=True)
    for axes, (column, title) in zip(panels, COLUMNS.items()):
        share = 100 * table[column] / table[column].sum()
        bars(axes, table["piece"], share, words=[""] * len(table), colours=GREY, upright=True)
        for (name, cut), colour in zip(cuts.items(), (BLUE, ORANGE, GREEN)):
            for begin, _ in stage_ranges(table, cut)[1:]:
                limit(axes, begin - 0.5, f"cut by {name}", colour=colour, along="x")
        label(axes, f"{title}, % of all", size=10)
    panels[-1].set_xlabel("block, in the order in which images pass", fontsize=9)
    legend(picture)
    return picture
