"""Traces by NVIDIA's own profilers: an Nsight Systems SQLite export, a Nsight Compute CSV."""

from __future__ import annotations

import csv
import re
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from course.analysis.traces.reader import Trace, TraceError, assemble

COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}  # CUPTI's own numbers
KNOWN_SCHEMA = 3  # the newest major version of nsys' export whose tables this module knows
_NSYS = "export one with: nsys export --type sqlite report.nsys-rep"
_NCU = (
    "write one with: ncu --csv --metrics gpu__time_duration.sum,"
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active python train.py > ncu.csv"
)
UNITS = {
    "nsecond": 1e-9,
    "ns": 1e-9,
    "usecond": 1e-6,
    "us": 1e-6,
    "msecond": 1e-3,
    "ms": 1e-3,
    "second": 1.0,
    "s": 1.0,
}
TENSOR = re.compile(r"sm__(inst_executed_pipe_tensor|pipe_tensor\w*_cycles_active)")


def read_nsys(path: str | Path) -> Trace:
    """An Nsight Systems report, exported to SQLite.

    Phases, steps and operators come from its NVTX ranges, where the script had any (operators
    from `torch.autograd.profiler.emit_nvtx`).

    Raises:
        TraceError: no such file, no SQLite, no kernels in it, or CUDA graphs without their kernels.
    """
    path = Path(path)
    if not path.is_file():
        raise TraceError(f"{path}: no such file; {_NSYS}")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    schema = "unknown"
    try:
        tables = _Tables(connection)
        schema = tables.schema
        _refuse_without_kernels(tables, path)
        rows, device = _nsys_rows(tables)
        trace = assemble(rows, device=device, source=f"{path.name}, Nsight Systems")
    except (sqlite3.DatabaseError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(
            f"{path} cannot be read as an Nsight Systems export, schema version {schema} "
            f"({type(error).__name__}: {error}): {_NSYS}"
        ) from None
    finally:
        connection.close()
    if schema.split(".")[0].isdigit() and int(schema.split(".")[0]) > KNOWN_SCHEMA:
        warnings.warn(
            f"{path} has schema version {schema}, newer than version {KNOWN_SCHEMA}, which the "
            f"course knows: compare the times with those of nsys stats {path.name}",
            stacklevel=2,
        )
    return trace


class _Tables:
    """The tables of an export. Some versions of nsys put _V2, _V3 … behind their names."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        self.schema = next(
            (
                str(row["value"])
                for row in self.rows("META_DATA_EXPORT")
                if row["name"] == "EXPORT_SCHEMA_VERSION"
            ),
            "unknown",
        )

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows under this name, else under the newest version of it that has rows."""
        suffixed = [each for each in self._names if re.fullmatch(rf"{name}_V\d+", each)]
        newest_first = sorted(suffixed, key=lambda each: -int(each.rpartition("_V")[2]))
        for each in [name, *newest_first]:
            found = self._connection.execute(f"SELECT * FROM {each}") if each in self._names else ()
            if rows := [dict(row) for row in found]:
                return rows
        return []


def _refuse_without_kernels(tables: _Tables, path: Path) -> None:
    """A CUDA graph that nsys recorded as one event hides its kernels from every table."""
    if graphs := tables.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        seconds = sum(row["end"] - row["start"] for row in graphs) / 1e9
        raise TraceError(
            f"{path} holds CUDA graphs without their kernels ({len(graphs)} launched, "
            f"{seconds:.3g} s in all), so every share would be wrong. Record again with: "
            f"nsys profile --cuda-graph-trace=node --trace cuda,nvtx; then {_NSYS}"
        )
    if not tables.rows("CUPTI_ACTIVITY_KIND_KERNEL"):
        raise TraceError(
            f"{path} has no table CUPTI_ACTIVITY_KIND_KERNEL with rows (schema version "
            f"{tables.schema}): the report holds no CUDA kernel. "
            f"Record with: nsys profile --trace cuda,nvtx; then {_NSYS}"
        )


def _nsys_rows(tables: _Tables) -> tuple[dict[str, list], str]:
    events = tables.rows
    texts = {row["id"]: row["value"] for row in events("StringIds")}
    kernels = [
        _event(row, _text(texts, row, "demangledName", "shortName"))
        for row in events("CUPTI_ACTIVITY_KIND_KERNEL")
    ]
    # The export explains its own numbers of kinds of memory, which differ from CUPTI's.
    kinds = {row["id"]: row.get("label", row.get("name")) for row in events("ENUM_CUDA_MEM_KIND")}
    copies = [_event(row, "") | _copy(row, kinds) for row in events("CUPTI_ACTIVITY_KIND_MEMCPY")]
    fills = events("CUPTI_ACTIVITY_KIND_MEMSET")
    copies += [
        _event(row, "") | {"kind": "memset", "memory": "", "bytes": row.get("bytes", 0)}
        for row in fills
    ]
    calls = [
        _event(row, _text(texts, row, "nameId")) for row in events("CUPTI_ACTIVITY_KIND_RUNTIME")
    ]
    marked = [row for row in events("NVTX_EVENTS") if row["end"]]
    ranges = [_event(row, row.get("text") or _text(texts, row, "textId")) for row in marked]
    operators = [row | {"name": row["name"].split(",")[0]} for row in ranges if "::" in row["name"]]
    rows = {
        "kernels": kernels,
        "copies": copies,
        "calls": calls,
        "operators": operators,
        "ranges": [row for row in ranges if "::" not in row["name"]],
    }
    origin = min((row["start_s"] for found in rows.values() for row in found), default=0)
    for row in (row for found in rows.values() for row in found):
        row["start_s"] = (row["start_s"] - origin) / 1e9
    devices = events("TARGET_INFO_GPU")
    return rows, devices[0].get("name", "") if devices else ""


def _event(row: dict[str, Any], name: str) -> dict[str, Any]:
    """A row of the export; a thread's number holds, above its low 24 bits, its process."""
    thread = row.get("globalTid")
    process = row.get("globalPid") if thread is None else thread
    process = int(process) >> 24 if process is not None else 0
    number = row.get("correlationId")
    return {
        "name": name,
        "start_s": row["start"],
        "duration_s": (row["end"] - row["start"]) / 1e9,
        "thread": thread,
        "stream": row.get("streamId"),
        "correlation": None if number is None else (process, number),
    }


def _text(texts: dict[int, str], row: dict[str, Any], *columns: str) -> str:
    found = (texts.get(row[column]) for column in columns if row.get(column) is not None)
    return next((text for text in found if text), "?")


def _copy(row: dict[str, Any], kinds: dict[int, str]) -> dict[str, Any]:
    ends = [kinds.get(row.get(end), "") for end in ("srcKind", "dstKind")]
    kind = COPY_KINDS.get(row["copyKind"], f"kind {row['copyKind']}")
    return {"kind": kind, "memory": " -> ".join(ends) if all(ends) else "", "bytes": row["bytes"]}


def read_ncu(path: str | Path) -> Trace:
    """What `ncu --csv` printed, other output of the program among it.

    Nsight Compute runs every kernel alone, several times over, so its kernels have a duration
    and counters, and no place in time: `start_s` is NaN.

    Raises:
        TraceError: no such file, or no kernel with a duration or a Tensor Core counter in it.
    """
    path = Path(path)
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; {_NCU}") from None
    begin = next((at for at, line in enumerate(lines) if _is_header(line)), None)
    if begin is None:
        raise TraceError(f"{path} has no line of column names with Kernel Name: {_NCU}")
    kernels = _ncu_kernels(lines[begin:])
    measured = ("duration_s", "tensor_active", "tensor_instructions")
    values = [kernel[key] for kernel in kernels for key in measured]
    if not np.isfinite(values).any():
        raise TraceError(f"{path} has neither durations nor Tensor Core counters: {_NCU}")
    rows = {
        "kernels": kernels,
        "copies": [],
        "calls": [],
        "operators": [],
        "ranges": [],
    }
    capability = kernels[0]["cc"]
    device = f"GPU of compute capability {capability}" if capability else ""
    return assemble(rows, device=device, source=f"{path.name}, Nsight Compute")


def _ncu_kernels(lines: list[str]) -> list[dict[str, Any]]:
    """One row a launch, of the table that begins with the line of column names."""
    kernels: dict[tuple, dict[str, Any]] = {}
    for row in _long(list(csv.reader(lines))):
        number = (row.get("Process ID"), row["ID"])
        kernel = kernels.setdefault(
            number,
            {
                "name": row["Kernel Name"],
                "start_s": np.nan,
                "duration_s": np.nan,
                "stream": row.get("Stream"),
                "tensor_active": np.nan,
                "tensor_instructions": np.nan,
                "cc": row.get("CC", ""),
            },
        )
        _set_metric(kernel, row)
    return list(kernels.values())


def _is_header(line: str) -> bool:
    return line.startswith(('"ID",', "ID,")) and "Kernel Name" in line


def _long(lines: list[list[str]]) -> list[dict[str, str]]:
    """One row a metric. With --page raw each metric is a column, its unit in the second line."""
    head, *body = lines
    if "Metric Name" in head:
        last = head.index("Metric Value")
        return [dict(zip(head, line)) for line in body if len(line) > last and line[0].isdigit()]
    units = dict(zip(head, body[0])) if body else {}
    kernels = [dict(zip(head, line)) for line in body if line and line[0].isdigit()]
    return [
        {**kernel, "Metric Name": name, "Metric Unit": units[name], "Metric Value": kernel[name]}
        for kernel in kernels
        for name in kernel
        if "__" in name
    ]


def _set_metric(kernel: dict[str, Any], row: dict[str, str]) -> None:
    name, unit = row["Metric Name"], row["Metric Unit"]
    value = _number(row["Metric Value"])
    if name in ("gpu__time_duration.sum", "Duration"):
        kernel["duration_s"] = value * UNITS.get(unit, np.nan)
    elif TENSOR.match(name):
        column = "tensor_active" if unit == "%" else "tensor_instructions"
        value = value / 100 if unit == "%" else value
        kernel[column] = np.fmax(kernel[column], value)  # of several pipes the busiest


def _number(text: str) -> float:
    """ncu writes numbers as the machine's locale does: 1,234,567 or 9,5; "n/a" becomes NaN."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return np.nan
