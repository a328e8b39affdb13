"""Which phase, and which step, was the host in? Answered from the ranges of a trace."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from typing import Any

from course.runs.record import PHASES

STEP = re.compile(r"(?:ProfilerStep#|step[ _#:]*)(\d+)", re.IGNORECASE)


class Clock:
    """Phases and steps of the main thread, by time.

    By time and not by thread, because the backward pass launches from a thread of its own,
    while the main thread waits for it in its range "backward".
    """

    def __init__(self, ranges: list[dict[str, Any]]) -> None:
        phases = [row for row in ranges if row["name"] in PHASES]
        steps = [row for row in ranges if STEP.fullmatch(row["name"])]
        threads = Counter(row["thread"] for row in phases or steps)
        main = threads.most_common(1)[0][0] if threads else None
        self._steps = _sorted(row for row in steps if row["thread"] == main)
        self._phases = _sorted(row for row in phases if row["thread"] == main)
        opened = self._unopened_load()
        self._phases = _sorted([*self._phases, *opened])
        self.ranges = self._within_steps([*ranges, *opened])

    def _unopened_load(self) -> list[dict[str, Any]]:
        """The first step's "load", which opens just before the profiler and so is not in the trace.

        It lasts from the step's begin to its first phase.
        """
        if not (self._steps and self._phases):
            return []
        begin = self._steps[0]["start_s"]
        first = next((row for row in self._phases if row["start_s"] >= begin), None)
        if first is None or first["name"] != "forward" or self.phase(begin):
            return []
        length = first["start_s"] - begin
        return [{"name": "load", "start_s": begin, "duration_s": length, "thread": first["thread"]}]

    def _within_steps(self, ranges: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Phases cut at the last step's end, after which "load" is the profiler's own closing."""
        if not self._steps:
            return ranges
        end = max(row["start_s"] + row["duration_s"] for row in self._steps)
        kept = [row for row in ranges if row["name"] not in PHASES or row["start_s"] < end]
        for row in kept:
            if row["name"] in PHASES:
                row["duration_s"] = min(row["duration_s"], end - row["start_s"])
        return kept

    def phase(self, time: float) -> str:
        """The phase at a time in seconds; "" outside any."""
        row = _around(self._phases, time)
        return row["name"] if row else ""

    def step(self, time: float) -> int:
        """The step's number at a time in seconds; -1 outside any."""
        row = _around(self._steps, time)
        return int(STEP.fullmatch(row["name"]).group(1)) if row else -1


def _sorted(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["start_s"])


def _around(rows: list[dict[str, Any]], time: float) -> dict[str, Any] | None:
    at = bisect_right(rows, time, key=lambda row: row["start_s"]) - 1
    if at < 0 or not time <= rows[at]["start_s"] + rows[at]["duration_s"]:
        return None
    return rows[at]
