"""Figures of pipelines: steps, cuts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from course.charts.base import BLUE, GREEN, GREY, ORANGE, SKY, Picture
from course.charts.primitives import bars, label, legend, limit, timeline
from course.training.evidence.pipeline_passes import BACKWARD, FORWARD, INPUT, WEIGHT
from labs.day4_4_pipeline.schedules import ideal_step_of, idle_share, measured_step
from labs.day4_4_pipeline.stages import stage_ranges

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
