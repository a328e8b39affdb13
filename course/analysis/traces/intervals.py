"""Intervals of time: merge them, and measure their overlap."""

from __future__ import annotations

import math
from bisect import bisect
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
    seconds, at = 0.0, max(bisect(merged, (interval[0], math.inf)) - 1, 0)
    while at < len(merged) and merged[at][0] < interval[1]:
        begin, end = merged[at]
        seconds += max(0.0, min(interval[1], end) - max(interval[0], begin))
        at += 1
    return seconds


def subtract_intervals(interval: Interval, merged: Intervals) -> Intervals:
    """Return the parts of an interval that merged intervals do not cover."""
    parts, at = [], interval[0]
    for begin, end in merged:
        if end <= at or begin >= interval[1]:
            continue
        if begin > at:
            parts.append((at, begin))
        at = max(at, end)
    return [*parts, (at, interval[1])] if at < interval[1] else parts
