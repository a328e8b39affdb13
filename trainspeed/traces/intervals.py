"""Intervals of time: merge them, and measure their overlap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

Interval = tuple[float, float]  # begin and end
Intervals = list[Interval]


def intervals_of(rows: pd.DataFrame) -> Intervals:
    """Return the interval of each row of a trace's table."""
    return list(zip(rows["start_s"], rows["start_s"] + rows["duration_s"]))


def merge_intervals(intervals: Iterable[Interval]) -> Intervals:
    """Merge intervals that overlap or touch; return them in order."""
    merged: Intervals = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def overlap_s(interval: Interval, merged: Intervals) -> float:
    """Return the seconds of an interval that merged intervals cover."""
    uncovered = subtract_intervals(interval, merged)
    return interval[1] - interval[0] - sum(end - begin for begin, end in uncovered)


def subtract_intervals(interval: Interval, merged: Intervals) -> Intervals:
    """Return the parts of an interval that merged intervals do not cover."""
    parts, position = [], interval[0]
    for begin, end in merged:
        if end <= position or begin >= interval[1]:
            continue
        if begin > position:
            parts.append((position, begin))
        position = max(position, end)
    return [*parts, (position, interval[1])] if position < interval[1] else parts
