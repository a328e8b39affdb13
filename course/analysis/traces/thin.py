"""A Chrome trace made small enough to be shipped, and still one that any viewer opens."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from course.analysis.traces.collectives import FIELDS
from course.analysis.traces.nesting import nest
from course.analysis.traces.reader import TraceError, kind_of, load_json

KEPT_ARGS = ("External id", "correlation", "stream", "bytes", "Input type", "Input Dims", *FIELDS)
HEAD = ("schemaVersion", "deviceProperties", "displayTimeUnit", "record_shapes", "distributedInfo")


def thin(path: str | Path, target: str | Path) -> Path:
    """Write a Chrome trace anew with what `read` and a viewer's timeline need, gzipped.

    Left out are Python's functions, flow arrows and each kernel's occupancy. In a trace of a
    GPU also the operators within operators that launched nothing (their time stays their
    parent's), and calls into the driver that neither launched nor waited. Times begin at 0.

    Returns:
        The target's path.

    Raises:
        TraceError: the file is no trace.
    """
    content = load_json(Path(path))
    events = [event for event in content["traceEvents"] if event.get("ph") in ("X", "M")]
    spans = [event for event in events if kind_of(event) and "dur" in event]
    if not spans:
        raise TraceError(f"{path} holds no operator and no kernel: nothing would be left")
    origin = min(event["ts"] for event in spans)
    useless = _launched_nothing(spans)
    calls = {_number(event) for event in spans if kind_of(event) == "calls"}
    kept = [_small(event, origin, calls) for event in spans if id(event) not in useless]
    names = [event for event in events if event["ph"] == "M" and event.get("args")]
    names = [
        {key: event[key] for key in ("ph", "name", "pid", "tid", "args") if key in event}
        for event in names
        if event["name"].endswith("_name")
    ]
    head = {key: content[key] for key in HEAD if key in content}
    text = json.dumps({**head, "traceEvents": [*names, *kept]}, separators=(",", ":"))
    Path(target).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return Path(target)


def _number(event: dict[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _small(event: dict[str, Any], origin: float, calls: set) -> dict[str, Any]:
    args = {key: value for key, value in event.get("args", {}).items() if key in KEPT_ARGS}
    if kind_of(event) in ("kernels", "copies") and _number(event) in calls:
        args.pop("External id", None)  # the call already leads to the operator
    small = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid")}
    ts = {"ts": round(event["ts"] - origin, 3), "dur": round(event["dur"], 3)}
    return {**small, **ts, "args": args}


def _launched_nothing(spans: list[dict[str, Any]]) -> set[int]:
    """Identities of the inner operators and of the calls without which nothing is lost.

    Nothing on a trace without a GPU's work: there the operators are all there is.
    """
    work = [event for event in spans if kind_of(event) in ("kernels", "copies")]
    if not work:
        return set()
    numbers = {_number(event) for event in work}
    rows = {
        where: [_row(e) for e in spans if kind_of(e) == where] for where in ("operators", "calls")
    }
    for found in rows.values():
        found.sort(key=lambda row: (str(row["thread"]), row["start_s"], -row["duration_s"]))
    useful: set[int] = set()
    needed = {event.get("args", {}).get("External id") for event in work} - {None}
    inner = nest(rows["operators"], rows["calls"])
    launched = [at for call, at in zip(rows["calls"], inner) if call["number"] in numbers]
    launched += [at for at, row in enumerate(rows["operators"]) if row["external"] in needed]
    for at in launched:
        while at is not None and at not in useful:
            useful.add(at)
            at = rows["operators"][at]["parent"]
    idle = [row for at, row in enumerate(rows["operators"]) if row["depth"] and at not in useful]
    idle += [call for call in rows["calls"] if call["number"] not in numbers and not _waits(call)]
    return {row["identity"] for row in idle}


def _waits(call: dict[str, Any]) -> bool:
    return "Synchronize" in call["name"]


def _row(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args", {})
    return {
        "name": event["name"],
        "start_s": event["ts"],
        "duration_s": event["dur"],
        "thread": event.get("tid"),
        "identity": id(event),
        "number": args.get("correlation"),
        "external": args.get("External id"),
    }
