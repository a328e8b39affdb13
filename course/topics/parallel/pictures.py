"""Pictures of a pipeline: what ranks do when, and where a network is cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course.charts.base import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, Picture, clean, words_on
from course.topics.parallel import schedules, timelines
from course.topics.parallel.balance import stages_of
from course.training.evidence.actions import BACKWARD, FORWARD, INPUT, WEIGHT

if TYPE_CHECKING:
    from course.runs.run import Run

# Of a pass, by its kind: the colour where its stage is the rank's first, and where its second.
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
NARROW = 0.012  # of the picture's width: no number fits into such a bar
COLUMNS = {"weights_m": "weights", "gflop": "GFLOP", "ms": "ms, measured here"}


def run(one: Run) -> Picture:
    """A run's step above what its order alone would give, on one axis of time."""
    found, due = timelines.timeline(one), timelines.ideal(one)
    return steps({f"{one.config.pipeline}, measured{_machine(one)}": found, "ideal": due})


def _machine(one: Run) -> str:
    return f": {one.record.machine}" if one.is_recorded else ""


def steps(tables: Mapping[str, pd.DataFrame]) -> Picture:
    """Steps one below the other, on one axis of time: a row a rank, a bar a pass.

    Args:
        tables: by their titles, as `timelines.timeline` and `schedules.ideal` return them.
    """
    ranks = [table["rank"].nunique() for table in tables.values()]
    picture = Picture(10, 0.75 + 0.55 * len(ranks) + 0.36 * sum(ranks))
    panels = picture.subplots(len(ranks), sharex=True, squeeze=False, height_ratios=ranks)[:, 0]
    end = max(table["end_ms"].max() for table in tables.values())
    for axes, (title, table) in zip(panels, tables.items()):
        _step(axes, table, end)
        axes.set_title(
            f"{title}: {schedules.idle(table):.0%} of the ranks' time idle", loc="left", fontsize=10
        )
    measured = "milliseconds since the step's first pass began"
    of_one = "time, in forward passes of a micro-batch"
    unitless = all(table.attrs.get("is_unitless") for table in tables.values())
    panels[-1].set_xlabel(of_one if unitless else measured, fontsize=9)
    kinds = [
        kind for kind in NAMES if any((table["what"] == kind).any() for table in tables.values())
    ]
    handles = [Patch(color=COLOURS[kind][0], label=NAMES[kind]) for kind in kinds]
    picture.legend(
        handles=handles, frameon=False, fontsize=9, ncols=len(kinds), loc="outside lower center"
    )
    return picture


def _step(axes: Axes, table: pd.DataFrame, end: float) -> None:
    ranks = table["rank"].nunique()
    for rank, rows in table.groupby("rank"):
        spans = zip(rows["begin_ms"], rows["end_ms"] - rows["begin_ms"])
        colours = [
            COLOURS[what][int(stage >= ranks)] for what, stage in zip(rows["what"], rows["stage"])
        ]
        style = {"facecolors": colours, "edgecolor": "white", "lw": 0.6}
        axes.broken_barh([*spans], (rank - 0.4, 0.8), **style)  # one thing to draw, not a hundred
        for row, colour in zip(rows.itertuples(), colours):
            if row.end_ms - row.begin_ms > NARROW * end:
                middle = (row.begin_ms + row.end_ms) / 2
                words = {"ha": "center", "va": "center", "color": words_on(colour)}
                number = axes.text(middle, rank, str(row.micro_batch), fontsize=7.5, **words)
                number.set_in_layout(False)  # it lies in its bar
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.set_xlim(0, 1.01 * end)
    clean(axes)


def cuts(table: pd.DataFrame, chosen: Mapping[str, str]) -> Picture:
    """What each piece has of all weights, GFLOP and milliseconds, and where stages begin.

    Args:
        table: of `balance.pieces`. chosen: the cuts by their names, as `balance.cut_by` gives them.
    """
    picture = Picture(10, 4.2)
    panels = picture.subplots(len(COLUMNS), sharex=True)
    for axes, (column, name) in zip(panels, COLUMNS.items()):
        share = 100 * table[column] / table[column].sum()
        axes.bar(range(len(table)), share, color=GREY, width=0.75)
        axes.set_title(f"{name}, % of all", loc="left", fontsize=10)
        axes.margins(x=0.01)
        clean(axes)
    for (name, cut), colour in zip(chosen.items(), (BLUE, ORANGE, GREEN, PURPLE)):
        for begin, *_ in stages_of(table, cut)[1:]:
            for axes in panels:
                axes.axvline(begin - 0.5, color=colour, lw=2, label=name)
    handles, labels = panels[0].get_legend_handles_labels()
    by_name = dict(zip(labels, handles))
    picture.legend(
        by_name.values(),
        [f"cut by {name}" for name in by_name],
        frameon=False,
        fontsize=9,
        ncols=len(by_name),
        loc="outside lower center",
    )
    panels[-1].set_xticks(range(len(table)), table["piece"], fontsize=9)
    panels[-1].set_xlabel("block, in the order in which images pass", fontsize=9)
    return picture
