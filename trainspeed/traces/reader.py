"""Read PyTorch's Chrome traces into tables, and join kernels to operators, phases and steps.

The device's record of a kernel has neither operator nor phase, only the number of the call that
launched it. That call is inside an operator, in time and on its thread, and the operator is inside
a phase. `assemble` follows this chain for the traces of every profiler.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from trainspeed.phases import PHASES
from trainspeed.resources import memory_bytes
from trainspeed.traces.collectives import collectives

Row = dict[str, Any]
COLUMNS = {
    "kernels": "kernel start_s duration_s device stream operator phase step input_types "
    "input_shapes launch_s tensor_active",
    "operators": "name start_s duration_s self_s thread depth phase step input_types input_shapes",
    "copies": "kind memory bytes start_s duration_s device stream phase step",
    "ranges": "name start_s duration_s thread",
    "calls": "name start_s duration_s thread",
    "collectives": "operation bytes type group_size start_s duration_s launch_s device phase step",
}
TEXT_COLUMNS = "kernel operator phase name kind memory operation type"
TABLES = {  # by an event's category in a Chrome trace
    "kernel": "kernels",
    "cpu_op": "operators",
    "user_annotation": "ranges",
    "gpu_memcpy": "copies",
    "gpu_memset": "copies",
}
STEP = re.compile(r"(?:ProfilerStep#|step[ _#:]*)(\d+)", re.IGNORECASE)
# These only move or convert data, also inside a convolution: a cast under autocast is no product.
MOVES = ("aten::to", "aten::_to_copy", "aten::contiguous", "aten::clone", "aten::copy_")
EXPECTED = "expected what torch.profiler's export_chrome_trace wrote, as .json or .json.gz"
JSON_MEMORY = 10  # bytes of memory for each byte of a trace, while it is read


class TraceError(ValueError):
    """A file that is not a trace; the message has the file, the reason and what was expected."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace as tables, in seconds since its first event. The columns are in `COLUMNS`.

    Attributes:
        kernels: one row per GPU kernel. `operator` is the operator that a reader would name
            (aten::conv2d), `input_types` and `input_shapes` are those of the innermost one that
            launched the kernel, after autocast. `launch_s` is when the host called the launch.
            `tensor_active` (share of the cycles, 0 to 1) comes from a counter of the Tensor Cores'
            pipe, NaN without. A value above 0 is no proof: on an H100, batch_norm and copies also
            use it a little.
        operators: one row per operator on the host; `self_s` excludes the operators inside it.
        copies: copies and fills by the device. `memory` is "Pinned -> Device", where known.
        ranges: named ranges on the host: phases, steps, the DataLoader.
        calls: calls into the device's driver that launched something or waited.
        collectives: what this rank exchanged with the others; `bytes` is what one rank sends,
            `launch_s` is NaN with gloo. NCCL's are among the kernels, too.
        device: the name of the first GPU, "" without a GPU. The column `device` has the numbers of
            GPUs, whose times overlap.
        source: the file, and the tool that wrote it.
        dropped: how many rows without a valid time were left out, by the reason.
        recorded: ", recorded DATE" for a recorded trace, so that pictures show it.
        origin_s: the time that counts as 0, by the clock of the machine.

    `step` is the profiler's number of the step, -1 outside any; `phase` is "" outside any.
    """

    kernels: pd.DataFrame
    operators: pd.DataFrame
    copies: pd.DataFrame
    ranges: pd.DataFrame
    calls: pd.DataFrame
    collectives: pd.DataFrame
    device: str = ""
    source: str = ""
    recorded: str = ""
    dropped: dict[str, int] = field(default_factory=dict)
    origin_s: float = 0.0


def read(path: str | Path) -> Trace:
    """Read a Chrome trace that `torch.profiler` exported, gzipped or not.

    Raises:
        TraceError: the file is missing, cut off or not a trace.
    """
    path = Path(path)
    content = load_json(path)
    try:
        trace = _read_events(content, path)
    except (AttributeError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise TraceError(f"{path} has a value of the wrong type ({reason}): {EXPECTED}") from None
    return trace


def load_json(path: Path) -> dict[str, Any]:
    """Load a Chrome trace; its list of events is under traceEvents."""
    most, data = memory_bytes()[1] // JSON_MEMORY, bytearray()
    try:
        with path.open("rb") as file:
            is_zipped = file.peek(2)[:2] == b"\x1f\x8b"
            text = gzip.GzipFile(fileobj=file) if is_zipped else file
            while len(data) <= most and (chunk := text.read(2**20)):
                data += chunk
        content = json.loads(data) if len(data) <= most else None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", "") or "the file is cut off, or is not JSON"
        raise TraceError(f"{path}: {reason}; {EXPECTED}") from None
    if len(data) > most:
        raise TraceError(
            f"{path} has more than {most / 2**30:.2g} GiB of text, too much for the free memory: "
            f"record fewer steps, or read it on a machine with more memory"
        )
    content = {"traceEvents": content} if isinstance(content, list) else content
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise TraceError(f"{path} is JSON, but has no list traceEvents: {EXPECTED}")
    for event in events:  # some tools write null
        event["args"] = event["args"] if isinstance(event.get("args"), dict) else {}
        event["name"] = str(event.get("name", ""))
    return content


def timed(
    rows: Iterable[Row], dropped: Counter[str], start: str = "start_s", duration: str = "duration_s"
) -> list[Row]:
    """Return the rows that have a valid time, and count the reasons of the others in `dropped`.

    Profilers write such rows when they are stopped, or lose an event. One of them would move the
    origin of all times, or make a device busy forever.

    Args:
        start, duration: names of a row's fields, in any unit.
    """
    kept = []
    for row in rows:
        if reason := _time_fault(row.get(start), row.get(duration)):
            dropped[reason] += 1
        else:
            kept.append(row)
    return kept


def _time_fault(start: Any, duration: Any) -> str:
    if not all(type(value) in (int, float) for value in (start, duration)):
        return "without a start or an end"
    if not (math.isfinite(start) and math.isfinite(duration)):
        return "with an infinite time"
    if duration < 0:
        return "that end before they start"
    return "" if start or duration else "whose start and end are 0"


def table_of(event: dict[str, Any]) -> str:
    """Return the table of `COLUMNS` to which an event of a Chrome trace belongs; "" for none."""
    category = str(event.get("cat", ""))
    return "calls" if category.endswith(("_runtime", "_driver")) else TABLES.get(category, "")


def row_of(event: dict[str, Any], origin: float) -> Row:
    """Return an event as a row, in seconds; `correlation` and `external` join rows."""
    args = event["args"]
    # As in "Memcpy HtoD (Pinned -> Device)".
    copy = re.match(r"Memcpy (\w+)(?: \((.*)\))?", event["name"])
    kind, memory = copy.groups(default="") if copy else ("memset", "")
    return {
        "name": event["name"],
        "start_s": (event["ts"] - origin) / 1e6,
        "duration_s": event["dur"] / 1e6,
        "thread": event.get("tid"),
        "device": args.get("device", event.get("pid")),
        "stream": args.get("stream"),
        "correlation": args.get("correlation"),
        "external": args.get("External id"),
        "input_types": _as_tuple(args.get("Input type", [])),
        "input_shapes": _as_tuple(args.get("Input Dims", [])),
        "kind": kind,
        "memory": memory,
        "bytes": args.get("bytes", 0),
    }


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _read_events(content: dict[str, Any], path: Path) -> Trace:
    events, dropped = (e for e in content["traceEvents"] if e.get("ph") == "X"), Counter()
    events = timed(events, dropped, "ts", "dur")
    origin = min((event["ts"] for event in events if event.get("cat") != "Trace"), default=0)
    rows: dict[str, list[Row]] = {name: [] for name in COLUMNS}
    for event in events:
        if name := table_of(event):
            rows[name].append(row_of(event, origin))
    group = content.get("distributedInfo")
    rows["collectives"] = collectives(events, origin, group if isinstance(group, dict) else {})
    if not (rows["operators"] or rows["kernels"]):
        left_out = f" (left out: {_counts(dropped)})" if dropped else ""
        raise TraceError(f"{path} has no operator and no kernel{left_out}: {EXPECTED}")
    gpus = content.get("deviceProperties")
    gpus = gpus if isinstance(gpus, list) else [gpus]
    names = [str(gpu["name"]) for gpu in gpus if isinstance(gpu, dict) and gpu.get("name")]
    device = next(iter(names), "")
    trace = assemble(rows, device=device, source=f"{path.name}, PyTorch", dropped=dropped)
    base_s = content.get("baseTimeNanoseconds", 0) / 1e9
    return replace(trace, origin_s=base_s + origin / 1e6)


def _counts(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items())


def assemble(
    rows: dict[str, list[Row]], *, device: str, source: str, dropped: Mapping[str, int]
) -> Trace:
    """Join rows into a `Trace`.

    Args:
        rows: the rows of each table; missing tables are empty. Kernels and copies refer to their
            call by `correlation` (calls have it, too) or else to their operator by `external`.
        device: the GPU's name.
        source: where the rows come from.
        dropped: counts of rows that `timed` left out.
    """
    if dropped:
        count = sum(dropped.values())
        source += f", without {count} invalid row{'s'[: count != 1]}"
        print(f"{source}: {_counts(dropped)}", file=sys.stderr)
    rows = {name: rows.get(name, []) for name in COLUMNS}
    operators, calls = (sorted(rows[name], key=thread_and_time) for name in ("operators", "calls"))
    callers = nest(operators, calls)
    clock = PhaseClock(rows["ranges"])
    numbered = [(call["correlation"], index) for index, call in enumerate(calls)]
    call_at = {number: index for number, index in reversed(numbered) if number is not None}
    operator_at = {row.get("external"): index for index, row in enumerate(operators)}
    launched = [*rows["kernels"], *rows["copies"]]
    launched += [row for row in rows["collectives"] if "correlation" in row]
    for row in launched:
        call = call_at.get(row.get("correlation"))
        operator = None if call is None else callers[call]
        if operator is None and row.get("external"):
            operator = operator_at.get(row["external"])
        row["kernel"] = row["name"]
        row["launch_s"] = np.nan if call is None else calls[call]["start_s"]
        row["host_s"] = row["launch_s"]
        if call is None and operator is not None:
            row["host_s"] = operators[operator]["start_s"]
        row |= _operator_columns(operators, operator)
    for row in [*launched, *rows["collectives"], *operators]:
        time = row.get("host_s", row["start_s"])
        row["phase"], row["step"] = clock.phase(time), clock.step(time)
    rows |= {"operators": operators, "ranges": clock.ranges, "calls": calls}
    tables = {name: _table(rows[name], columns.split()) for name, columns in COLUMNS.items()}
    return Trace(**tables, device=device, source=source, dropped=dict(dropped))


def _table(rows: list[Row], columns: list[str]) -> pd.DataFrame:
    """Return a DataFrame with exactly these columns, also without rows, sorted by time."""
    frame = pd.DataFrame(rows).reindex(columns=columns)
    if frame.empty:  # no value has a type, and text methods need one
        types = {name: object if name in TEXT_COLUMNS.split() else float for name in columns}
        return frame.astype(types)
    return frame.sort_values("start_s", ignore_index=True)


def _operator_columns(operators: list[Row], index: int | None) -> Row:
    """Return name, types and shapes for a kernel launched in the operator at this index."""
    if index is None:
        return {"operator": "", "input_types": (), "input_shapes": ()}
    names, inner = [], operators[index]
    while index is not None:
        names.append(operators[index]["name"])
        index = operators[index]["parent"]
    readable = [name for name in names if "::" in name and "autograd::" not in name] or names[:1]
    moves = [name for name in readable if name in MOVES]
    inputs = {name: inner.get(name, ()) for name in ("input_types", "input_shapes")}
    return {"operator": (moves or readable)[-1], **inputs}


def thread_and_time(row: Row) -> tuple:
    """Return a sort key by which an enclosing row comes before the rows inside it."""
    return str(row["thread"]), row["start_s"], -row["duration_s"]


def nest(operators: list[Row], calls: list[Row]) -> list[int | None]:
    """Nest operators by time and thread: set `parent`, `depth` and `self_s` of each.

    Both lists must be sorted by `thread_and_time`.

    Returns:
        For each call the index of the innermost operator around it.
    """
    callers: list[int | None] = [None] * len(calls)
    marks = [(thread_and_time(row)[:2], 0, index) for index, row in enumerate(operators)]
    marks += [(thread_and_time(row)[:2], 1, index) for index, row in enumerate(calls)]
    around: list[int] = []
    for (thread, time), is_call, index in sorted(marks):
        while around and not _encloses(operators[around[-1]], thread, time):
            around.pop()
        if is_call:
            callers[index] = around[-1] if around else None
            continue
        row = operators[index]
        row["parent"] = around[-1] if around else None
        row["depth"], row["self_s"] = len(around), row["duration_s"]
        if around:
            operators[around[-1]]["self_s"] -= row["duration_s"]
        around.append(index)
    return callers


def _encloses(row: Row, thread: str, time: float) -> bool:
    return str(row["thread"]) == thread and time < row["start_s"] + row["duration_s"]


class PhaseClock:
    """Phases and steps of the main thread, by time.

    They are looked up by time and not by thread, because backward launches from its own thread,
    while the main thread waits in its range "backward".
    """

    def __init__(self, ranges: list[Row]) -> None:
        phases = [row for row in ranges if row["name"] in PHASES]
        steps = [row for row in ranges if STEP.fullmatch(row["name"])]
        threads = Counter(row["thread"] for row in phases or steps)
        main = threads.most_common(1)[0][0] if threads else None
        start = itemgetter("start_s")
        self._steps = sorted((row for row in steps if row["thread"] == main), key=start)
        self._phases = sorted((row for row in phases if row["thread"] == main), key=start)
        load = self._first_load()
        self._phases = sorted([*self._phases, *load], key=start)
        self.ranges = self._cut_phases([*ranges, *load])

    def _first_load(self) -> list[Row]:
        """Return the first step's "load": it opens before the profiler and is not in the trace.

        It lasts from the step's begin to its first phase.
        """
        if not (self._steps and self._phases):
            return []
        begin = self._steps[0]["start_s"]
        first = next((row for row in self._phases if row["start_s"] >= begin), None)
        if first is None or first["name"] != "forward" or self.phase(begin):
            return []
        duration_s = first["start_s"] - begin
        return [first | {"name": "load", "start_s": begin, "duration_s": duration_s}]

    def _cut_phases(self, ranges: list[Row]) -> list[Row]:
        """Cut phases at the last step's end: later the profiler closes, inside a "load"."""
        if not self._steps:
            return ranges
        end = max(row["start_s"] + row["duration_s"] for row in self._steps)
        ranges_before_end = [
            row for row in ranges if row["name"] not in PHASES or row["start_s"] < end
        ]
        for row in ranges_before_end:
            if row["name"] in PHASES:
                row["duration_s"] = min(row["duration_s"], end - row["start_s"])
        return ranges_before_end

    def phase(self, time: float) -> str:
        """Return the phase at a time in seconds, or "" outside any."""
        row = _row_at(self._phases, time)
        return row["name"] if row else ""

    def step(self, time: float) -> int:
        """Return the step's number at a time in seconds, or -1 outside any."""
        row = _row_at(self._steps, time)
        return int(STEP.fullmatch(row["name"]).group(1)) if row else -1


def _row_at(rows: list[Row], time: float) -> Row | None:
    index = bisect_right(rows, time, key=itemgetter("start_s")) - 1
    is_inside = index >= 0 and time <= rows[index]["start_s"] + rows[index]["duration_s"]
    return rows[index] if is_inside else None
