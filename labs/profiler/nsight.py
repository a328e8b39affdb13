"""Read traces of NVIDIA's profilers: Nsight Systems' SQLite export, Nsight Compute's CSV."""

from __future__ import annotations

import csv
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from itertools import chain
from pathlib import Path

import numpy as np

from trainspeed import traces

COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}  # CUPTI's numbers
NSYS_COMMAND = "export one with: nsys export --type sqlite report.nsys-rep"
NCU_COMMAND = (
    "write one with: ncu --csv --metrics gpu__time_duration.sum,"
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active python train.py > ncu.csv"
)
UNITS = {  # seconds
    "nsecond": 1e-9,
    "ns": 1e-9,
    "usecond": 1e-6,
    "us": 1e-6,
    "msecond": 1e-3,
    "ms": 1e-3,
    "second": 1.0,
    "s": 1.0,
}
TENSOR_COUNTER = re.compile(r"sm__pipe_tensor\w*_cycles_active.*pct")


def read_nsys(path: str | Path) -> traces.Trace:
    """Read an Nsight Systems report that was exported to SQLite.

    Phases, steps and operators come from its NVTX ranges, if the script had any (operators from
    `torch.autograd.profiler.emit_nvtx`).

    Raises:
        TraceError: the file is missing, not SQLite, or has no kernels; or CUDA graphs hide them.
    """
    path = Path(path)
    if not path.is_file():
        raise traces.TraceError(f"{path}: no such file; {NSYS_COMMAND}")
    schema = "unknown"
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        try:
            export = _Export(connection)
            schema = export.schema
            _check_kernels(export, path)
            source = f"{path.name}, Nsight Systems"
            rows, dropped = _nsys_rows(export)
            return traces.assemble(rows, device=export.device, source=source, dropped=dropped)
        except traces.TraceError:
            raise
        except (sqlite3.DatabaseError, KeyError, TypeError, ValueError) as error:
            raise traces.TraceError(
                f"{path} cannot be read as an Nsight Systems export, schema version {schema} "
                f"({type(error).__name__}: {error}): {NSYS_COMMAND}"
            ) from None


class _Export:
    """The tables of an export. Some versions of nsys append _V2, _V3 … to their names."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.row_factory = sqlite3.Row
        self._connection = connection
        self._names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        settings = {row.get("name"): row.get("value") for row in self.rows("META_DATA_EXPORT")}
        self.schema = settings.get("EXPORT_SCHEMA_VERSION", "unknown")
        self.device = str(next(iter(self.rows("TARGET_INFO_GPU")), {}).get("name") or "")

    def rows(self, name: str) -> list[traces.Row]:
        """Return all rows of a table, or of its newest version that has rows."""
        versions = [
            table_name for table_name in self._names if re.fullmatch(rf"{name}_V\d+", table_name)
        ]
        versions.sort(key=lambda version: -int(version.rpartition("_V")[2]))
        for table in [name, *versions] if name in self._names else versions:
            if rows := self._connection.execute(f"SELECT * FROM {table}").fetchall():
                return [dict(row) for row in rows]
        return []


def _check_kernels(export: _Export, path: Path) -> None:
    """Raise TraceError without kernels; a CUDA graph recorded as one event hides its kernels."""
    if graphs := export.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        graphs_timed = traces.timed(map(_event, graphs), Counter())
        seconds = sum(row["duration_s"] for row in graphs_timed) / 1e9
        raise traces.TraceError(
            f"{path} has CUDA graphs without their kernels ({len(graphs)} launched, "
            f"{seconds:.3g} s in total), so every share would be wrong. Record again with: "
            f"nsys profile --cuda-graph-trace=node --trace cuda,nvtx; then {NSYS_COMMAND}"
        )
    if not export.rows("CUPTI_ACTIVITY_KIND_KERNEL"):
        raise traces.TraceError(
            f"{path} has no table CUPTI_ACTIVITY_KIND_KERNEL with rows (schema version "
            f"{export.schema}): the report has no CUDA kernel. "
            f"Record with: nsys profile --trace cuda,nvtx; then {NSYS_COMMAND}"
        )


def _nsys_rows(export: _Export) -> tuple[dict[str, list[traces.Row]], Counter[str]]:
    """Return the rows of each table in seconds, and counts of those without a valid time."""
    texts = {row["id"]: row["value"] for row in export.rows("StringIds")}
    # The export has its own numbers for kinds of memory, which differ from CUPTI's.
    kinds = export.rows("ENUM_CUDA_MEM_KIND")
    memory = {row["id"]: row.get("label", row.get("name")) for row in kinds}

    def event(row: traces.Row, *columns: str) -> traces.Row:
        """Return a row of the export, named by the first of the columns that is not empty."""
        names = (texts.get(row[column]) for column in columns if row.get(column) is not None)
        return _event(row, row.get("text") or next(filter(None, names), "?"))

    ranges = [event(row, "textId") for row in export.rows("NVTX_EVENTS")]
    # A mark has no end, and neither has a range that was open at the end.
    ranges = [row for row in ranges if row["duration_s"] is not None]
    rows = {
        "kernels": [
            event(row, "demangledName", "shortName")
            for row in export.rows("CUPTI_ACTIVITY_KIND_KERNEL")
        ],
        "copies": [
            *(
                _event(row) | _copy(row, memory)
                for row in export.rows("CUPTI_ACTIVITY_KIND_MEMCPY")
            ),
            *(
                _event(row) | {"kind": "memset", "memory": "", "bytes": row.get("bytes", 0)}
                for row in export.rows("CUPTI_ACTIVITY_KIND_MEMSET")
            ),
        ],
        "calls": [event(row, "nameId") for row in export.rows("CUPTI_ACTIVITY_KIND_RUNTIME")],
        "operators": [
            row | {"name": row["name"].split(",")[0]} for row in ranges if "::" in row["name"]
        ],
        "ranges": [row for row in ranges if "::" not in row["name"]],
    }
    dropped: Counter[str] = Counter()
    rows = {name: traces.timed(table, dropped) for name, table in rows.items()}
    events = [row for table in rows.values() for row in table]
    origin = min((row["start_s"] for row in events), default=0)
    for row in events:
        row["start_s"] = (row["start_s"] - origin) / 1e9
        row["duration_s"] /= 1e9
    return rows, dropped


def _event(row: traces.Row, name: str = "") -> traces.Row:
    """Return a row of the export as one of a trace, its times still in nanoseconds, or None."""
    thread = row.get("globalTid")
    process = row.get("globalPid") if thread is None else thread
    number = row.get("correlationId")
    start, end = (row[name] if isinstance(row[name], int) else None for name in ("start", "end"))
    return {
        "name": name,
        "start_s": start,
        "duration_s": None if start is None or end is None else end - start,
        "thread": thread,
        "device": row.get("deviceId"),
        "stream": row.get("streamId"),
        # The bits above the low 24 of a thread's number are its process.
        "correlation": None if number is None else (int(process or 0) >> 24, number),
    }


def _copy(row: traces.Row, memory: dict[int, str]) -> traces.Row:
    ends = [memory.get(row.get(end), "") for end in ("srcKind", "dstKind")]
    kind = COPY_KINDS.get(row.get("copyKind"), f"kind {row.get('copyKind')}")
    memory_kinds = " -> ".join(ends) if all(ends) else ""
    return {"kind": kind, "memory": memory_kinds, "bytes": row.get("bytes") or 0}


def read_ncu(path: str | Path) -> traces.Trace:
    """Read what `ncu --csv` printed, also between other output of the program.

    Nsight Compute runs each kernel separately, several times, so its kernels have a duration and
    counters, but no place in time: `start_s` is NaN.

    Raises:
        TraceError: the file is missing, or has no kernel with a duration or Tensor Core counter.
    """
    path = Path(path)
    dropped: Counter[str] = Counter()
    try:
        with path.open(errors="replace") as lines:
            heads = (line for line in lines if line.startswith(('"ID",', "ID,")))
            head = next((line for line in heads if "Metric Value" in line), None)
            if head is None:
                reason = "has no line of column names with Metric Value"
                raise traces.TraceError(f"{path} {reason}: {NCU_COMMAND}")
            kernels = _ncu_kernels(chain([head], lines))
    except OSError as error:
        raise traces.TraceError(f"{path}: {error.strerror}; {NCU_COMMAND}") from None
    except (csv.Error, KeyError) as error:
        raise traces.TraceError(f"{path} is no table of ncu ({error}): {NCU_COMMAND}") from None
    kernels = [  # a kernel may have only the other counter
        kernel
        for kernel in kernels
        if math.isnan(kernel["duration_s"]) or traces.timed([kernel], dropped, "duration_s")
    ]
    measured = ("duration_s", "tensor_active")
    if not np.isfinite([kernel[name] for kernel in kernels for name in measured]).any():
        raise traces.TraceError(
            f"{path} has neither durations nor Tensor Core counters: {NCU_COMMAND}"
        )
    capability = kernels[0]["capability"]
    device = f"GPU of compute capability {capability}" if capability else ""
    source = f"{path.name}, Nsight Compute"
    return traces.assemble({"kernels": kernels}, device=device, source=source, dropped=dropped)


def _ncu_kernels(lines: Iterable[str]) -> list[traces.Row]:
    """Return one row per launch of a table that begins with the line of column names."""
    kernels: dict[tuple, traces.Row] = {}
    for row in csv.DictReader(lines):
        if not (row["Metric Value"] and row["ID"].isdigit()):  # output of the program
            continue
        unit = row.get("Metric Unit")
        kernel = kernels.setdefault(
            (row.get("Process ID"), row["ID"]),
            {
                "name": row["Kernel Name"],
                "start_s": np.nan,
                "duration_s": np.nan,
                "device": row.get("Device"),
                "stream": row.get("Stream"),
                "tensor_active": np.nan,
                "capability": row.get("CC", ""),
            },
        )
        name, value = row["Metric Name"], _number(row["Metric Value"])
        if name in ("gpu__time_duration.sum", "Duration"):
            kernel["duration_s"] = value * UNITS.get(unit, np.nan)
        elif TENSOR_COUNTER.match(name):
            # Of several pipes, the busiest counts.
            kernel["tensor_active"] = np.fmax(kernel["tensor_active"], value / 100)
    return list(kernels.values())


def _number(text: str) -> float:
    """Parse a number in the format of the machine's locale: 1,234,567 or 9,5; "n/a" is NaN."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return np.nan
