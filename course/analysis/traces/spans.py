"""Stretches of time in which something was under way: joined, and cut by one another."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

Spans = list[tuple[float, float]]  # (begin, end) each


def stretches(rows: pd.DataFrame) -> Spans:
    """When each row of a trace's table was under way, row by row."""
    return list(zip(rows["start_s"], rows["start_s"] + rows["duration_s"]))


def joined(spans: Iterable[tuple[float, float]]) -> Spans:
    """The same times as stretches that neither overlap nor touch, in order."""
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def covered(span: tuple[float, float], busy: Spans) -> float:
    """Seconds of a span that lie within the stretches, which are as `joined` leaves them.

    Of thousands in a trace few meet the span: they are found by their order.
    """
    found, at = 0.0, max(bisect(busy, (span[0], math.inf)) - 1, 0)
    while at < len(busy) and busy[at][0] < span[1]:
        begin, end = busy[at]
        found += max(0.0, min(span[1], end) - max(span[0], begin))
        at += 1
    return found


def exposed(span: tuple[float, float], busy: Spans) -> Spans:
    """The pieces of a span that lie outside the stretches."""
    pieces, at = [], span[0]
    for begin, end in busy:
        if end <= at or begin >= span[1]:
            continue
        if begin > at:
            pieces.append((at, begin))
        at = max(at, end)
    return [*pieces, (at, span[1])] if at < span[1] else pieces
