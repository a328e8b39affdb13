"""What lies in what: the operators of a trace, nested by time and thread."""

from __future__ import annotations

from typing import Any


def by_thread_and_time(row: dict[str, Any]) -> tuple:
    """Sorts rows so that what encloses comes before what it encloses."""
    return str(row["thread"]), row["start_s"], -row["duration_s"]


def nest(operators: list[dict], calls: list[dict]) -> list[int | None]:
    """Find what lies in what: sets `parent`, `depth` and `self_s` of every operator.

    Both lists are sorted by thread and time.

    Returns:
        For each call the innermost operator around it, by its place in the list.
    """
    inner: list[int | None] = [None] * len(calls)
    marks = [(by_thread_and_time(row)[:2], 0, at) for at, row in enumerate(operators)]
    marks += [(by_thread_and_time(row)[:2], 1, at) for at, row in enumerate(calls)]
    around: list[int] = []
    for (thread, time), is_call, at in sorted(marks):
        while around and not _holds(operators[around[-1]], thread, time):
            around.pop()
        if is_call:
            inner[at] = around[-1] if around else None
            continue
        row = operators[at]
        row["parent"] = around[-1] if around else None
        row["depth"], row["self_s"] = len(around), row["duration_s"]
        if around:
            operators[around[-1]]["self_s"] -= row["duration_s"]
        around.append(at)
    return inner


def _holds(row: dict[str, Any], thread: str, time: float) -> bool:
    return str(row["thread"]) == thread and time < row["start_s"] + row["duration_s"]
