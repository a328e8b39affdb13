"""Make a Chrome trace small enough to ship; any viewer of the format still opens it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from trainspeed.traces.collectives import FIELDS
from trainspeed.traces.reader import (
    TraceError,
    load_json,
    nest,
    row_of,
    table_of,
    thread_and_time,
    timed,
)

KEPT_ARGS = ("External id", "correlation", "stream", "bytes", "Input type", "Input Dims", *FIELDS)
HEAD = ("schemaVersion", "deviceProperties", "displayTimeUnit", "record_shapes", "distributedInfo")


def thin(path: str | Path, target: str | Path) -> Path:
    """Write a gzipped copy of a Chrome trace with only what `read` and a viewer's timeline need.

    Python's functions, flow arrows and each kernel's occupancy are left out. In a GPU's trace, so
    are operators inside operators that launched nothing (their time stays with their parent), and
    calls into the driver that neither launched nor waited. Times begin at 0.

    Returns:
        The target's path.

    Raises:
        TraceError: the file is not a trace.
    """
    content = load_json(Path(path))
    events = [e for e in content["traceEvents"] if table_of(e) and e.get("ph") == "X"]
    events = timed(events, Counter(), "ts", "dur")
    if not events:
        raise TraceError(f"{path} has no operator and no kernel: nothing would remain")
    origin = min(event["ts"] for event in events)
    idle = _idle_events(events)
    calls = {_number(event) for event in events if table_of(event) == "calls"}
    shortened = [_shortened(event, origin, calls) for event in events if id(event) not in idle]
    names = [
        {key: event[key] for key in ("ph", "name", "pid", "tid", "args") if key in event}
        for event in content["traceEvents"]
        if event.get("ph") == "M" and event["args"] and event["name"].endswith("_name")
    ]
    head = {key: content[key] for key in HEAD if key in content}
    text = json.dumps({**head, "traceEvents": [*names, *shortened]}, separators=(",", ":"))
    Path(target).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return Path(target)


def _number(event: dict[str, Any]) -> Any:
    return event["args"].get("correlation")


def _shortened(event: dict[str, Any], origin: float, calls: set) -> dict[str, Any]:
    args = {key: value for key, value in event["args"].items() if key in KEPT_ARGS}
    if table_of(event) in ("kernels", "copies") and _number(event) in calls:
        args.pop("External id", None)  # the call already leads to the operator
    times = {"ts": round(event["ts"] - origin, 3), "dur": round(event["dur"], 3)}
    return {key: event[key] for key in ("ph", "cat", "name", "pid", "tid")} | times | {"args": args}


def _idle_events(events: list[dict[str, Any]]) -> set[int]:
    """Return the identities of inner operators and calls that launched nothing.

    In a trace without GPU work there are none, because it contains only operators.
    """
    work = [event["args"] for event in events if table_of(event) in ("kernels", "copies")]
    if not work:
        return set()
    launched = {args.get("correlation") for args in work}
    external = {args.get("External id") for args in work} - {None}
    operators, calls = (
        sorted(
            (row_of(event, 0) | {"id": id(event)} for event in events if table_of(event) == name),
            key=thread_and_time,
        )
        for name in ("operators", "calls")
    )
    callers = nest(operators, calls)
    used_operators = [
        index for call, index in zip(calls, callers) if call["correlation"] in launched
    ]
    used_operators += [index for index, row in enumerate(operators) if row["external"] in external]
    useful: set[int] = set()
    for index in used_operators:
        while index is not None and index not in useful:
            useful.add(index)
            index = operators[index]["parent"]
    idle = [row for index, row in enumerate(operators) if row["depth"] and index not in useful]
    idle += [
        call
        for call in calls
        if call["correlation"] not in launched and "Synchronize" not in call["name"]
    ]
    return {row["id"] for row in idle}
