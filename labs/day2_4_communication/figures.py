"""Pictures of what ranks send each other: a step's timeline, its buckets, BatchNorm's drift."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from course.analysis.communication import computing
from course.analysis.traces.intervals import Intervals, intervals_of, subtract_intervals
from course.analysis.traces.tables import Trace, steps
from course.charts.base import (
    ACCENT,
    GREEN,
    GREY,
    ORANGE,
    PHASE_COLOURS,
    Picture,
)
from course.charts.primitives import label, legend, lines, mark, stack
from course.charts.primitives import timeline as timeline_of
from course.runs.record import PHASES

NARROW = 0.035  # of the picture's width: a bar that is narrower has no room for words
SMALL = 5e5  # bytes below which a collective has no words


def plot_timeline(trace: Trace, step: int | None = None) -> Picture:
    """Draw a step: what the rank computes above, what it sends below; red where it only waits.

    Args:
        step: the step's number; the first of the trace by default.

    Raises:
        ValueError: no such step, or one without collectives.
    """
    sent = trace.collectives
    known = sorted(set(sent["step"]) - {-1})
    number = known[0] if step is None and known else step
    rows = sent[sent["step"] == number]
    if rows.empty:
        raise ValueError(
            f"step={step}: {trace.source} has collectives in steps {known or 'none'}; "
            "launch with gpus=2 or more"
        )
    start, end = _window(trace, rows, number)
    phases = trace.ranges[trace.ranges["name"].isin(PHASES)].groupby("name")
    computed = [(computing(trace, phase), PHASE_COLOURS[phase], "") for phase in PHASES]
    drawn = {
        "host: phase": [(intervals_of(each), PHASE_COLOURS[name], "") for name, each in phases],
        "GPU: computing" if len(trace.kernels) else "CPU: computing": computed,
    }
    busy = computing(trace)
    for operation, each in rows.groupby("operation", sort=False):
        for (_, row), lane in zip(each.iterrows(), _packed(each)):
            name = operation.replace("_", "-") + " " * lane
            drawn.setdefault(name, []).extend(_sent(row, busy, end - start))
    lanes = {
        name: [piece for part in parts for piece in _pieces(*part, start, end)]
        for name, parts in drawn.items()
    }
    picture = Picture(10, 1.9 + 0.42 * len(lanes))
    axes = picture.panel()
    timeline_of(axes, lanes, heights=(0.6, 0.8, 0.7))
    axes.set_yticklabels("" if name.endswith(" ") else name for name in lanes)
    label(
        axes,
        f"step {number}: {trace.device or 'CPU'}{trace.recorded}",
        size=10,
        xlabel="milliseconds since the step began on the host",
        xlim=(0, (end - start) * 1e3),
    )
    colours = {name: PHASE_COLOURS[name] for name in PHASES}
    legend(picture, 7, colours | {"sending, hidden": GREY, "exposed": ACCENT})
    return picture


def _window(trace: Trace, rows: pd.DataFrame, number: int) -> tuple[float, float]:
    """Begin and end of a step, in seconds: the end of what was asked for in it, on the device."""
    row = steps(trace).set_index("step").loc[number]
    kernels = trace.kernels[trace.kernels["step"] == number]
    ends = pd.concat([each["start_s"] + each["duration_s"] for each in (rows, kernels)])
    return row["start_s"], max(row["end_s"], ends.max())


def _sent(row: pd.Series, busy: Intervals, whole_s: float) -> list[tuple[Intervals, str, str]]:
    """Return what to draw of a collective: all of it, and above that where it is exposed."""
    span = (row["start_s"], row["start_s"] + row["duration_s"])
    readable = row["duration_s"] > NARROW * whole_s and row["bytes"] > SMALL
    words = f"{row['bytes'] / 1e6:.0f} MB" if readable else ""
    return [([span], GREY, words), (subtract_intervals(span, busy), ACCENT, "")]


def _pieces(
    spans: Intervals, colour: str, words: str, start: float, end: float
) -> list[tuple[float, float, str, str]]:
    """Return milliseconds since the start of what lies within the window."""
    inside = [(max(begin, start), min(stop, end)) for begin, stop in spans]
    return [
        ((begin - start) * 1e3, (stop - begin) * 1e3, colour, words)
        for begin, stop in inside
        if stop > begin
    ]


def _packed(rows: pd.DataFrame) -> list[int]:
    """A lane for each collective, so that none lies on another."""
    ends: list[float] = []
    lanes = []
    for begin, length in zip(rows["start_s"], rows["duration_s"]):
        free = next((lane for lane, end in enumerate(ends) if end <= begin), len(ends))
        ends[free : free + 1] = [begin + length]
        lanes.append(free)
    return lanes


def plot_buckets(reports: Mapping[str, pd.DataFrame]) -> Picture:
    """How several runs cut the same gradients: bytes of each all-reduce, and what is not hidden.

    Args:
        reports: what `comm_report` returned, by the name that the row gets.
    """
    picture = Picture(10, 1.5 + 0.5 * len(reports))
    left, right = picture.panels(1, 2, sharey=True, width_ratios=[3, 2])
    steps_of = [report[report["step"] == report["step"].min()] for report in reports.values()]
    sent = [report[report["phase"].eq("backward")] for report in steps_of]
    for place, rows in enumerate(sent):
        sizes = rows["bytes"] / 1e6
        look = {"color": PHASE_COLOURS["backward"], "ec": "white", "height": 0.6}
        left.barh([place] * len(rows), sizes, left=sizes.cumsum() - sizes, **look)
        mark(left, sizes.sum(), place, str(len(rows)))
    times = {
        "hidden": [rows["overlapped_ms"].sum() for rows in sent],
        "exposed": [rows["exposed_ms"].sum() for rows in sent],
    }
    stack(right, list(reports), times, words=[""] * len(sent), colours=(GREY, ACCENT))
    left.margins(x=0.1)
    label(left, xlabel="MB in each collective of backward, in order; their number")
    label(right, xlabel="milliseconds under way, in one step")
    legend(picture, 2, {"hidden": GREY, "exposed": ACCENT})
    return picture


def plot_statistics(spreads: Mapping[str, pd.DataFrame]) -> Picture:
    """How far the ranks' running means lie apart, from the first BatchNorm to the last.

    Args:
        spreads: what `batchnorm.spread` returned, by the name of the line.
    """
    picture = Picture(9, 3.2)
    axes = picture.panel()
    curves = {f"{name}: median": (each["depth"], each["spread"]) for name, each in spreads.items()}
    bands = {f"{name}: median": (each["spread"], each["largest"]) for name, each in spreads.items()}
    lines(axes, curves, bands=bands, colours=(ACCENT, GREEN, ORANGE, GREY), marker="o")
    layers = max(spreads.values(), key=len)
    shown = layers[layers.index % max(1, len(layers) // 10) == 0]
    axes.set_xticks(shown["depth"], shown["layer"], rotation=35, ha="right", fontsize=8)
    label(
        axes, "pale: up to the largest", ylabel="running means: how far\napart, in std deviations"
    )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    return picture
