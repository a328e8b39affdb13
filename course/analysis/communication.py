"""What the ranks of a run send each other, when, and how much of it is hidden behind computing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pandas as pd

from course.analysis.traces import tables
from course.analysis.traces.collectives import NCCL
from course.analysis.traces.intervals import (
    Intervals,
    intervals_of,
    merge_intervals,
    overlap_s,
    subtract_intervals,
)
from course.analysis.traces.tables import Trace
from course.runs import recordings
from course.text import wrap_text

if TYPE_CHECKING:
    from course.runs.run import Run

REPORT = [
    "step",
    "phase",
    "operation",
    "bytes",
    "type",
    "group_size",
    "start_ms",
    "duration_ms",
    "backward_ms",
    "overlapped_ms",
    "exposed_ms",
]
# Operators on the host that wait for others, or enclose such as do: while they run, nothing need
# be computed.
NO_COMPUTING = r"c10d::|autograd::|torch::distributed|torch\.distributed|record_param|nccl:"


def comm_report(of: Run | Trace) -> pd.DataFrame:
    """Every collective in a trace, as its rank saw it, in order of time.

    Columns: step; phase of the step in which it was asked for; operation; bytes that one rank puts
    in; type; group_size; start_ms, since the step began on the host; duration_ms, waiting for the
    slowest rank included; overlapped_ms, in which this rank computed something meanwhile;
    backward_ms, the part of that in which it was backward's; exposed_ms, the rest.
    `attrs` hold "steps", how many were traced; "exposed_ms" of all of them, in which two
    collectives at once count once; and "text", which says it in words.

    Computing is, on a GPU, any kernel but NCCL's; on a CPU, any operator that is not one of
    communication. There, computing and sending share the cores, so what is hidden is not free.

    Raises:
        ValueError: the run has no trace; or no collective is in it.
    """
    found = of if isinstance(of, Trace) else tables.read_run(of)
    if found.collectives.empty:
        raise ValueError(
            f"{found.source} has no collective in it: launch with gpus=2 or more, and several "
            f"processes must have joined one group (TODO 7 and 8)"
        )
    begins = tables.steps(found).set_index("step")["start_s"]
    rows = found.collectives.copy()
    spans = intervals_of(rows)
    for column, phase in (("overlapped_ms", None), ("backward_ms", "backward")):
        busy = computing(found, phase)
        rows[column] = [1e3 * overlap_s(span, busy) for span in spans]
    rows["duration_ms"] = 1e3 * rows["duration_s"]
    rows["exposed_ms"] = (rows["duration_ms"] - rows["overlapped_ms"]).clip(lower=0)
    rows["start_ms"] = 1e3 * (rows["start_s"] - rows["step"].map(begins).fillna(0.0))
    report = rows[REPORT].reset_index(drop=True)
    report.attrs |= {"steps": max(len(begins), 1), "exposed_ms": 1e3 * _exposed(found)}
    report.attrs["text"] = _told(report)
    return report


def computing(found: Trace, phase: str | None = None) -> Intervals:
    """Stretches of time (begin, end) in which the rank computed, merged.

    Args:
        phase: only what was asked for in this phase of the step; None: in any.
    """
    rows, name = found.kernels, "kernel"
    own = ~rows[name].str.match(NCCL)
    if rows.empty:
        rows, name = found.operators, "name"
        own = rows[name].str.contains("::") & ~rows[name].str.match(NO_COMPUTING)
    rows = rows[own.astype(bool) & (rows["phase"].eq(phase) if phase else True)]
    return merge_intervals(intervals_of(rows))


def _exposed(found: Trace) -> float:
    """Seconds in which something was sent and nothing computed; two at once count once."""
    busy = computing(found)
    sent = merge_intervals(intervals_of(found.collectives))
    return sum(end - begin for span in sent for begin, end in subtract_intervals(span, busy))


def _told(report: pd.DataFrame) -> str:
    """The report in words, each figure that of a mean step."""
    steps, exposed_ms = report.attrs["steps"], report.attrs["exposed_ms"]
    size, lasted_ms = report["bytes"].sum(), report["duration_ms"].sum()
    hidden = report["overlapped_ms"].sum() / lasted_ms if lasted_ms else 0.0
    lines = [
        f"{len(report) / steps:g} collectives a step, over {report['group_size'].max():g} ranks: "
        f"{size / steps / 1e6:.1f} MB from each rank, under way for {lasted_ms / steps:.1f} ms",
        f"computing hides {hidden:.0%} of that; for {exposed_ms / steps:.1f} ms of a step "
        f"this rank only waits for it",
    ]
    for phase, rows in report.groupby("phase", sort=False):
        kinds = rows.groupby(["operation", "type"], sort=False)["bytes"].agg(["size", "sum"])
        said = ", ".join(
            f"{number} {operation} of {type_ or 'nothing'}, {size / 1e6:.3g} MB"
            for (operation, type_), (number, size) in zip(kinds.index, kinds.values)
        )
        lines.append(f"{phase or 'outside any phase'}: {said}")
    return wrap_text("\n".join(lines))


def compared(reports: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Several `comm_report` side by side, a row each: what a step sends, and what that costs.

    Columns, of a mean step: collectives, megabytes, largest_mb, under_way_ms (added up), hidden
    (the share that computing covers), exposed_ms.
    """
    table = {}
    for name, report in reports.items():
        steps, lasted_ms = report.attrs["steps"], report["duration_ms"].sum()
        table[name] = {
            "collectives": len(report) / steps,
            "megabytes": report["bytes"].sum() / steps / 1e6,
            "largest_mb": report["bytes"].max() / 1e6,
            "under_way_ms": lasted_ms / steps,
            "hidden": report["overlapped_ms"].sum() / lasted_ms,
            "exposed_ms": report.attrs["exposed_ms"] / steps,
        }
    return pd.DataFrame.from_dict(table, orient="index")


def messages(runs: Iterable[Run]) -> pd.DataFrame:
    """Every all-reduce in the traces of runs: ranks, bytes that each puts in, duration_s, run.

    A duration has the waiting for the slowest rank in it.
    """
    found = []
    for run in runs:
        rows = tables.read_run(run).collectives
        rows = rows[rows["operation"] == "all_reduce"] if len(rows) else rows
        found += [
            (row.group_size, row.bytes, row.duration_s, run.name) for row in rows.itertuples()
        ]
    return pd.DataFrame(found, columns=["ranks", "bytes", "duration_s", "run"])


def recorded_runs(machine: str, gpus: int = 0) -> dict[str, Run]:
    """The traced runs on several GPUs that were recorded on a machine, by their rung.

    Empty, with a line that says so, where there is none.

    Args:
        gpus: those on so many; 0: on the most.
    """
    known = machine in recordings.machines()
    runs = recordings.recorded_runs(machine, "communication") if known else []
    traced = [run for run in runs if run.record.trace]
    gpus = gpus or max((run.record.gpus for run in traced), default=0)
    found = {run.config.rung: run for run in traced if run.record.gpus == gpus}
    if not found:
        which = f"{gpus} GPUs" if gpus else "several GPUs"
        print(f"No traced run on {which} is recorded for {machine}: nothing to show.")
    return found
