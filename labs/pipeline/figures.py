"""Figures of pipelines: steps, orders of passes, and where networks are split."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

import pandas as pd

from course.charts import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Picture,
    bars,
    label,
    legend,
    limit,
    timeline,
)
from labs.pipeline.orders import Function, collect_order, find_problem
from labs.pipeline.passes import BACKWARD, FORWARD, INPUT, WEIGHT
from labs.pipeline.schedules import (
    DURATIONS,
    ideal_step,
    ideal_step_of,
    idle_share,
    measured_step,
    schedule_order,
    simulate,
)
from labs.pipeline.stages import stage_ranges

if TYPE_CHECKING:
    from course import Run

# By the kind of a pass: the colour of the rank's first stage, and of its second.
COLOURS = {
    FORWARD: (SKY, "#A6D8F4"),
    BACKWARD: (BLUE, "#8C9CC9"),
    INPUT: (ORANGE, "#F2CA73"),
    WEIGHT: (DARK, "#8F8F8F"),
}
NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT: "backward: inputs",
    WEIGHT: "backward: weights",
}
COLUMNS = {"weights_m": "weights", "gflop": "GFLOP", "ms": "time on this CPU"}


def plot_run(run: Run) -> Picture:
    """Draw a run's step above the ideal step of its schedule."""
    machine = f": {run.record.machine}" if run.is_recorded else ""
    measured = f"{run.config.pipeline}, measured{machine}"
    return _plot_steps({measured: measured_step(run), "ideal": ideal_step_of(run)})


def plot_ideal(ranks: int, micro_batches: int, *schedules: str) -> Picture:
    """Draw the ideal steps of schedules, below each other."""
    tables = {name: ideal_step(name, ranks, micro_batches) for name in schedules}
    return _plot_steps({f"{name}, ideal": table for name, table in tables.items()})


def _plot_steps(tables: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw steps below each other, on one axis of time: a row per rank, a bar per pass.

    Args:
        tables: by title, from `measured_step` or `ideal_step`.
    """
    ranks = [table["rank"].nunique() for table in tables.values()]
    picture = Picture(10, 0.75 + 0.55 * len(ranks) + 0.36 * sum(ranks))
    panels = picture.panels(len(ranks), sharex=True, height_ratios=ranks)
    end = max(table["end_ms"].max() for table in tables.values())
    for axes, (title, table), count in zip(panels, tables.items(), ranks):
        timeline(axes, _lanes(table, count, end), heights=[0.8])
        title += f": {idle_share(table):.0%} of the ranks' time idle"
        label(axes, title, size=10, xlim=(0, 1.01 * end))
    is_unitless = all(table.attrs.get("is_unitless") for table in tables.values())
    unit = "in forward passes of a micro-batch" if is_unitless else "in ms since the first pass"
    panels[-1].set_xlabel(f"time, {unit}", fontsize=9)
    kinds = set(pd.concat(tables.values())["kind"])
    legend(picture, 4, {name: COLOURS[kind][0] for kind, name in NAMES.items() if kind in kinds})
    return picture


def plot_order(function: Function, stages: int = 4, micro_batches: int = 8) -> Picture:
    """Draw the order that a learner's function returns, and mark the first wrong pass in it.

    A function that returns no order yet is replaced by the solution, and the title says so.
    """
    title, problem = "your order", None
    try:
        order = collect_order(function, stages, micro_batches)
        if not any(order):
            raise ValueError("a blank is left")
        problem = find_problem(order, micro_batches)
    except Exception:  # a learner's function may raise anything, which the check explains
        title = "our order, until yours returns one"
        order = schedule_order("1f1b", stages, micro_batches)
    if problem and not problem.runs:
        order[problem.stage] = order[problem.stage][: problem.position]
    table = simulate(order, lambda pass_: DURATIONS[pass_.kind])
    end = max([3e3 * (micro_batches + stages - 1), *table["end_ms"]])  # 1F1B's, or longer
    lanes = {f"stage {n}": row for n, row in enumerate(_lanes(table, stages, end).values())}
    if problem:
        row, position = lanes[f"stage {problem.stage}"], problem.position
        begin, length = max([0, *table.query(f"rank == {problem.stage}")["end_ms"]]), 1e3
        if problem.runs:
            begin, length, *_ = row.pop(position)
        row.append((begin, length, ACCENT, f"{problem.wrong.kind}{problem.wrong.micro_batch}"))
    picture = Picture(10, 1.6 + 0.36 * stages)
    axes = picture.panel()
    timeline(axes, lanes, heights=[0.8])
    words = problem.message if problem else f"{idle_share(table):.0%} of the stages' time idle"
    label(
        axes, fill(f"{title}: {words}", 110, break_on_hyphens=False), size=10, xlim=(0, 1.06 * end)
    )
    axes.set_xlabel("time, in forward passes of a micro-batch", fontsize=9)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e3:g}")
    kinds = {NAMES[kind]: COLOURS[kind][0] for kind in (FORWARD, BACKWARD)}
    legend(picture, 3, kinds | ({"the first wrong pass": ACCENT} if problem else {}))
    return picture


def _lanes(table: pd.DataFrame, ranks: int, end: float) -> dict[str, list]:
    """Return a step's bars by rank."""
    lanes: dict[str, list] = {f"rank {rank}": [] for rank in range(ranks)}
    for row in table.itertuples():
        length = row.end_ms - row.begin_ms
        colour = COLOURS[row.kind][int(row.stage >= ranks)]
        number = str(row.micro_batch) if length > 0.012 * end else ""
        bar = (row.begin_ms, length - 0.0015 * end, colour, number)  # a gap between passes
        lanes[f"rank {row.rank}"].append(bar)
    return lanes


def plot_cuts(table: pd.DataFrame, cuts: Mapping[str, str]) -> Picture:
    """Draw each piece's share of weights, GFLOP and milliseconds, and where stages begin.

    Args:
        table: from `measure_pieces`.
        cuts: by name, from `balanced_splits`.
    """
    picture = Picture(10, 4.2)
    panels = picture.panels(len(COLUMNS), sharex=True)
    for axes, (column, title) in zip(panels, COLUMNS.items()):
        share = 100 * table[column] / table[column].sum()
        bars(axes, table["piece"], share, words=[""] * len(table), colours=GREY, upright=True)
        for (name, cut), colour in zip(cuts.items(), (BLUE, ORANGE, GREEN)):
            for begin, _ in stage_ranges(table, cut)[1:]:
                limit(axes, begin - 0.5, f"split by {name}", colour=colour, along="x")
        label(axes, f"{title}, % of all", size=10)
    panels[-1].set_xlabel("block, from the network's input to its output", fontsize=9)
    legend(picture)
    return picture
