"""A profiler's trace as tables: PyTorch's Chrome trace read, joined up, and made small.

The device's record of a kernel names neither operator nor phase. It carries the number of the
call that launched it; the call lies, in time and on its thread, inside an operator; and the
operator inside a phase. `assemble` follows that chain, for every source of traces.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from course.analysis.traces.collectives import collectives
from course.analysis.traces.join import Clock
from course.analysis.traces.nesting import by_thread_and_time, nest
from course.runs.run import Run

COLUMNS = {
    "kernels": [
        "kernel",
        "start_s",
        "duration_s",
        "stream",
        "operator",
        "inner_operator",
        "phase",
        "step",
        "input_types",
        "input_shapes",
        "launch_s",
        "tensor_active",
        "tensor_instructions",
    ],
    "operators": [
        "name",
        "start_s",
        "duration_s",
        "self_s",
        "thread",
        "depth",
        "phase",
        "step",
        "input_types",
        "input_shapes",
    ],
    "copies": ["kind", "memory", "bytes", "start_s", "duration_s", "stream", "phase", "step"],
    "ranges": ["name", "start_s", "duration_s", "thread"],
    "calls": ["name", "start_s", "duration_s", "thread"],
    "collectives": [
        "operation",
        "bytes",
        "type",
        "elements",
        "group_size",
        "start_s",
        "duration_s",
        "launch_s",
        "lane",
        "phase",
        "step",
    ],
}
TEXTS = (
    "kernel",
    "operator",
    "inner_operator",
    "phase",
    "name",
    "kind",
    "memory",
    "operation",
    "type",
    "lane",
)
# Inside a convolution these still only move or convert data: a cast under autocast is no product.
MOVES = ("aten::to", "aten::_to_copy", "aten::contiguous", "aten::clone", "aten::copy_")


class TraceError(ValueError):
    """A file that is no trace; the message names the file, what is wrong, and what is valid."""


@dataclass(frozen=True, eq=False)
class Trace:
    """What ran when, in seconds since the trace's first event. Columns as in `COLUMNS`.

    Attributes:
        kernels: one row a GPU kernel. `operator` is the operator a reader would name
            (aten::conv2d), `inner_operator` the innermost one that launched the kernel, after
            autocast; `input_types` and `input_shapes` are the latter's. `launch_s` is when the
            host called the launch. `tensor_active` (share of the cycles, 0 to 1) and
            `tensor_instructions` (count) are what counters saw in the Tensor Cores' pipe, NaN
            where none was read. Neither is proof above 0 alone: on an H100 batch_norm and
            copies issue a few such instructions too.
        operators: one row an operator on the host; `self_s` leaves out the operators within.
        copies: copies and fills by the device. `memory` as "Pinned -> Device", where known.
        ranges: named ranges on the host: phases, steps, the DataLoader.
        calls: calls into the device's driver that launched something or waited.
        collectives: what the ranks sent each other, as this rank saw it; `bytes` is what one rank
            puts in, `launch_s` NaN with gloo. NCCL's are among the kernels too.
        device: the GPU's name, "" without one.
        source: the file, and what wrote it.

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
    recorded: str = ""  # ", recorded DATE": no picture of it may pass for one of this machine


def table(rows: list[dict], columns: list[str]) -> pd.DataFrame:
    """A DataFrame with exactly these columns, also where there are no rows."""
    frame = pd.DataFrame(rows).reindex(columns=columns)
    if frame.empty:  # no value tells a column's type, and later text methods ask for it
        return frame.astype({name: object if name in TEXTS else float for name in columns})
    return frame


def read(path: str | Path) -> Trace:
    """A Chrome trace that `torch.profiler` exported, gzipped or not.

    Raises:
        TraceError: no such file, a cut one, or one that holds something else, such as an event
            without a name.
    """
    path = Path(path)
    version = None
    with suppress(OSError):  # of which load_json tells
        version = path.stat().st_mtime_ns, path.stat().st_size
    found = _read(path.absolute(), version)
    return replace(found, **{name: getattr(found, name).copy() for name in COLUMNS})


@lru_cache(maxsize=32)  # 2 MB each, 11 at most; a report and its notebook ask several questions
def _read(path: Path, version: tuple[int, int] | None) -> Trace:
    """The file as it was then; its tables are handed on as copies, which may be changed."""
    content = load_json(path)
    try:
        found = _assembled(content, path)
    except (AttributeError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise TraceError(f"{path} holds a value of the wrong type ({problem}): {_VALID}") from None
    owner = Run(path.parent)
    told = f", recorded {owner.record.started_at[:10]}" if owner.is_recorded else ""
    return replace(found, recorded=told)


def _assembled(content: dict[str, Any], path: Path) -> Trace:
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    events = [event for event in events if "dur" in event and "ts" in event]
    origin = min((event["ts"] for event in events if event.get("cat") != "Trace"), default=0)
    rows: dict[str, list[dict]] = {name: [] for name in COLUMNS}
    for event in events:
        where = kind_of(event)
        if where:
            rows[where].append(_row(event, where, origin))
    rows["collectives"] = collectives(events, origin, content.get("distributedInfo") or {})
    if not (rows["operators"] or rows["kernels"]):
        raise TraceError(f"{path} holds no operator and no kernel: {_VALID}")
    devices = [entry.get("name", "") for entry in content.get("deviceProperties") or []]
    return assemble(rows, device=devices[0] if devices else "", source=f"{path.name}, PyTorch")


_VALID = "a trace is what torch.profiler's export_chrome_trace wrote, as .json or .json.gz"


def load_json(path: Path) -> dict[str, Any]:
    """The content of a Chrome trace file, its list of events under traceEvents."""
    try:
        data = path.read_bytes()
        content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        reason = "is a broken gzip file" if isinstance(error, gzip.BadGzipFile) else error.strerror
        raise TraceError(f"{path}: {reason}; {_VALID}") from None
    except (EOFError, zlib.error):
        raise TraceError(f"{path} is cut off: write it again; {_VALID}") from None
    except ValueError:  # of which JSON's and Unicode's errors are kinds
        raise TraceError(f"{path} is not JSON, or is cut off: {_VALID}") from None
    if isinstance(content, list):
        content = {"traceEvents": content}
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise TraceError(f"{path} is JSON, but has no list traceEvents: {_VALID}")
    for number, event in enumerate(events):
        event["args"] = event.get("args") or {}  # some tools write null
        if event.get("ph") == "X" and (fault := _fault(event)):
            raise TraceError(f"{path}, event {number}: {fault}; {_VALID}")
    return content


def _fault(event: dict[str, Any]) -> str:
    """What keeps an event from being read; "": nothing."""
    if not isinstance(event.get("name"), str):
        return "it has no name"
    for key in ("ts", "dur"):
        value = event.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{event['name']!r} has {key}={value!r}, expected a number of microseconds"
    return ""


def kind_of(event: dict[str, Any]) -> str:
    """The table of `COLUMNS` in which an event of a Chrome trace belongs; "" in none."""
    category = str(event.get("cat", ""))
    if category.endswith(("_runtime", "_driver")):
        return "calls"
    return {
        "kernel": "kernels",
        "cpu_op": "operators",
        "user_annotation": "ranges",
        "gpu_memcpy": "copies",
        "gpu_memset": "copies",
    }.get(category, "")


def _row(event: dict[str, Any], where: str, origin: float) -> dict[str, Any]:
    """One event as a row, microseconds made seconds; `correlation` and `external` join rows."""
    args = event.get("args", {})
    row = {
        "name": event["name"],
        "start_s": (event["ts"] - origin) / 1e6,
        "duration_s": event["dur"] / 1e6,
        "thread": event.get("tid"),
        "correlation": args.get("correlation"),
        "external": args.get("External id"),
    }
    if where == "operators":
        row["input_types"] = _tuples(args.get("Input type", []))
        row["input_shapes"] = _tuples(args.get("Input Dims", []))
    elif where in ("kernels", "copies"):
        row["stream"] = args.get("stream")
    if where == "copies":  # as in "Memcpy HtoD (Pinned -> Device)"
        found = re.match(r"Memcpy (\w+)(?: \((.*)\))?", event["name"])
        row["kind"], row["memory"] = found.groups(default="") if found else ("memset", "")
        row["bytes"] = args.get("bytes", 0)
    return row


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def assemble(rows: dict[str, list[dict]], *, device: str, source: str) -> Trace:
    """Join events into a `Trace`.

    Args:
        rows: the tables' rows by name. Kernels and copies name their call by `correlation`
            (calls have it too) or, failing that, their operator by `external`.
        device: the GPU's name.
        source: where the rows are from.
    """
    operators = sorted(rows["operators"], key=by_thread_and_time)
    calls = sorted(rows["calls"], key=by_thread_and_time)
    inner = nest(operators, calls)
    clock = Clock(rows["ranges"])
    call_at = {call["correlation"]: at for at, call in reversed(list(enumerate(calls)))}
    operator_at = {row.get("external"): at for at, row in enumerate(operators)}
    sent = rows.get("collectives", [])
    for row in rows["kernels"] + rows["copies"] + [row for row in sent if "correlation" in row]:
        at = call_at.get(row["correlation"]) if row.get("correlation") is not None else None
        row["launch_s"] = calls[at]["start_s"] if at is not None else np.nan
        found = inner[at] if at is not None else None
        if found is None and row.get("external"):
            found = operator_at.get(row["external"])
        row |= _operator(operators, found)
        row["kernel"] = row["name"]
        row["asked_s"] = (
            operators[found]["start_s"] if at is None and found is not None else row["launch_s"]
        )
    for row in [*rows["kernels"], *rows["copies"], *sent, *operators]:
        time = row.get("asked_s", row["start_s"])
        row["phase"], row["step"] = clock.phase(time), clock.step(time)
    data = {**rows, "collectives": sent, "operators": operators, "ranges": clock.ranges}
    data["calls"] = calls
    tables = {name: table(data[name], columns) for name, columns in COLUMNS.items()}
    tables = {name: frame.sort_values("start_s") for name, frame in tables.items()}
    tables = {name: frame.reset_index(drop=True) for name, frame in tables.items()}
    return Trace(**tables, device=device, source=source)


def _operator(operators: list[dict], at: int | None) -> dict[str, Any]:
    """Names, types and shapes for a kernel that was launched in the operator at this place."""
    if at is None:
        return {"operator": "", "inner_operator": "", "input_types": (), "input_shapes": ()}
    chain, row = [], operators[at]
    while at is not None:
        chain.append(operators[at]["name"])
        at = operators[at]["parent"]
    named = [name for name in chain if "::" in name and "autograd::" not in name] or chain[:1]
    moves = [name for name in named if name in MOVES]
    return {
        "operator": (moves or named)[-1],
        "inner_operator": row["name"],
        "input_types": row.get("input_types", ()),
        "input_shapes": row.get("input_shapes", ()),
    }
