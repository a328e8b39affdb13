"""Pictures of what ranks send each other: a step's timeline, its buckets, BatchNorm's drift."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course.charts.base import (
    ACCENT,
    DARK,
    GREEN,
    GREY,
    ON_LIGHT,
    ORANGE,
    PHASE_COLOURS,
    Picture,
    clean,
)
from course.runs.record import PHASES
from course.topics.communication.report import computing
from course.traces.spans import Spans, exposed, stretches
from course.traces.tables import Trace, steps

NARROW = 0.035  # of the picture's width: a bar that is narrower has no room for words
SMALL = 5e5  # bytes below which a collective has no words


def timeline(trace: Trace, step: int | None = None) -> Picture:
    """One step: what the rank computes above, what it sends below; red where it only waits.

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
        raise ValueError(f"step={step}: there are collectives in steps {known or 'none'}")
    start, end = _window(trace, rows, number)
    lanes = _packed(rows)
    picture = Picture(10, 1.9 + 0.42 * (2 + len(set(lanes))))
    axes = picture.add_subplot()
    _computed(axes, trace, start, end)
    busy = computing(trace)
    for (_, row), lane in zip(rows.iterrows(), lanes):
        _bar(axes, row, 2 + lane, busy, start, end)
    names = ["host: phase", "GPU: computing" if len(trace.kernels) else "CPU: computing"]
    axes.set_yticks(range(3), [*names, "sending"])
    axes.set_ylim(2.6 + max(lanes), -0.6)
    axes.set_xlim(0, (end - start) * 1e3)
    axes.set_xlabel("milliseconds since the step began on the host", fontsize=9)
    axes.set_title(
        f"step {number}: {trace.device or 'CPU'}{trace.recorded}", loc="left", fontsize=10
    )
    _timeline_legend(axes)
    clean(axes)
    return picture


def _timeline_legend(axes: Axes) -> None:
    handles = [Patch(color=PHASE_COLOURS[name], label=name) for name in PHASES]
    handles += [Patch(color=GREY, label="sending, hidden"), Patch(color=ACCENT, label="exposed")]
    axes.legend(
        handles=handles,
        ncols=len(handles),
        frameon=False,
        fontsize=9,
        columnspacing=1.2,
        loc="upper center",
        bbox_to_anchor=(0.46, -0.22),
    )


def _window(trace: Trace, rows: pd.DataFrame, number: int) -> tuple[float, float]:
    """Begin and end of a step, in seconds: the end of what was asked for in it, on the device."""
    row = steps(trace).set_index("step").loc[number]
    kernels = trace.kernels[trace.kernels["step"] == number]
    ends = pd.concat([each["start_s"] + each["duration_s"] for each in (rows, kernels)])
    return row["start_s"], max(row["end_s"], ends.max())


def _computed(axes: Axes, trace: Trace, start: float, end: float) -> None:
    for name, rows in trace.ranges[trace.ranges["name"].isin(PHASES)].groupby("name"):
        _spans(axes, stretches(rows), 0, 0.6, PHASE_COLOURS[name], start, end)
    for phase in PHASES:
        _spans(axes, computing(trace, phase), 1, 0.8, PHASE_COLOURS[phase], start, end)


def _bar(axes: Axes, row: pd.Series, place: int, busy: Spans, start: float, end: float) -> None:
    span = (row["start_s"], row["start_s"] + row["duration_s"])
    _spans(axes, [span], place, 0.7, GREY, start, end)
    _spans(axes, exposed(span, busy), place, 0.7, ACCENT, start, end)
    if row["duration_s"] > NARROW * (end - start) and row["bytes"] > SMALL:
        words = f"{row['bytes'] / 1e6:.0f} MB"
        centre = (sum(span) / 2 - start) * 1e3
        axes.text(
            centre, place, words, ha="center", va="center", fontsize=8, color=ON_LIGHT, clip_on=True
        )


def _spans(
    axes: Axes, spans: Spans, place: float, tall: float, colour: str, start: float, end: float
) -> None:
    inside = [(max(begin, start), min(stop, end)) for begin, stop in spans]
    bars = [((begin - start) * 1e3, (stop - begin) * 1e3) for begin, stop in inside if stop > begin]
    axes.broken_barh(bars, (place - tall / 2, tall), color=colour, lw=0)


def _packed(rows: pd.DataFrame) -> list[int]:
    """A lane for each collective, so that none lies on another."""
    ends: list[float] = []
    lanes = []
    for begin, length in zip(rows["start_s"], rows["duration_s"]):
        free = next((lane for lane, end in enumerate(ends) if end <= begin), len(ends))
        ends[free : free + 1] = [begin + length]
        lanes.append(free)
    return lanes


def buckets(reports: Mapping[str, pd.DataFrame]) -> Picture:
    """How several runs cut the same gradients: bytes of each all-reduce, and what is not hidden.

    Args:
        reports: what `comm_report` returned, by the name that the row gets.
    """
    picture = Picture(10, 1.3 + 0.5 * len(reports))
    left, right = picture.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    for place, report in enumerate(reports.values()):
        step = report["step"].min()
        rows = report[(report["step"] == step) & report["phase"].eq("backward")]
        at = 0.0
        for size in rows["bytes"] / 1e6:
            left.barh(place, size, left=at, color=PHASE_COLOURS["backward"], ec="white", height=0.6)
            at += size
        left.text(at, place, f"  {len(rows)}", va="center", fontsize=9, color=DARK)
        hidden, rest = rows["overlapped_ms"].sum(), rows["exposed_ms"].sum()
        right.barh(place, hidden, color=GREY, height=0.6)
        right.barh(place, rest, left=hidden, color=ACCENT, height=0.6)
    left.set_yticks(range(len(reports)), list(reports))
    left.invert_yaxis()
    left.margins(x=0.1)
    left.set_xlabel("MB in each collective of backward, in order; their number", fontsize=9)
    right.set_xlabel("milliseconds under way, in one step", fontsize=9)
    right.legend(
        handles=[Patch(color=GREY, label="hidden"), Patch(color=ACCENT, label="exposed")],
        frameon=False,
        fontsize=9,
    )
    for axes in (left, right):
        clean(axes)
    return picture


def statistics(spreads: Mapping[str, pd.DataFrame]) -> Picture:
    """How far the ranks' running means lie apart, from the first BatchNorm to the last.

    Args:
        spreads: what `batchnorm.spread` returned, by the name of the line.
    """
    picture = Picture(9, 3.2)
    axes = picture.add_subplot()
    for (name, table), colour in zip(spreads.items(), (ACCENT, GREEN, ORANGE, GREY)):
        axes.plot(table["depth"], table["spread"], "o-", color=colour, label=f"{name}: median")
        axes.fill_between(
            table["depth"],
            table["spread"],
            table["largest"],
            color=colour,
            alpha=0.15,
            lw=0,
            label=f"{name}: up to the largest",
        )
    layers = max(spreads.values(), key=len)
    shown = layers[layers.index % max(1, len(layers) // 10) == 0]
    axes.set_xticks(shown["depth"], shown["layer"], rotation=35, ha="right", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("running means: how far\napart, in std deviations", fontsize=9)
    axes.legend(frameon=False, fontsize=9)
    clean(axes)
    return picture
