"""Report what the ranks in a trace send each other, when, and how much of it compute hides."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from trainspeed.traces import tables
from trainspeed.traces.intervals import (
    intervals_of,
    merge_intervals,
    overlap_s,
    subtract_intervals,
)
from trainspeed.traces.tables import Trace, computing

COLUMNS = [
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


def comm_report(trace: Trace) -> pd.DataFrame:
    """List every collective in a trace as its rank saw it, in order of time.

    Columns: step; phase of the step that launched it; operation; bytes that one rank puts in;
    type; group_size; start_ms, since the step began on the host; duration_ms, including the wait
    for the slowest rank; overlapped_ms, in which this rank computed; backward_ms, the part of
    that in backward; exposed_ms, the rest.
    `attrs` contain "steps", the number of traced steps; "exposed_ms" of all of them, in which two
    collectives at once count once; and "text", a summary.

    On a GPU, every kernel but NCCL's computes; on a CPU, every operator that does not communicate.
    A CPU computes and sends on the same cores, so hidden messages still cost time there.

    Raises:
        ValueError: the trace has no collective.
    """
    if trace.collectives.empty:
        raise ValueError(
            f"{trace.source} has no collective in it: expected the trace of one of several ranks "
            f"that joined a process group"
        )
    begins = tables.steps(trace).set_index("step")["start_s"]
    by_device = trace.collectives.groupby("device", dropna=False, sort=False)
    parts = [rows.copy() for _, rows in by_device]
    exposed_s = 0.0
    for rows in parts:  # computing on one device does not hide messages of another
        device, spans = rows["device"].iloc[0], intervals_of(rows)
        for column, phase in (("overlapped_ms", None), ("backward_ms", "backward")):
            hiding = computing(trace, phase, device)
            rows[column] = [1e3 * overlap_s(span, hiding) for span in spans]
        busy = computing(trace, device=device)
        waits = (subtract_intervals(span, busy) for span in merge_intervals(spans))
        exposed_s += sum(end - begin for pieces in waits for begin, end in pieces)
    rows = pd.concat(parts).sort_index()
    rows["duration_ms"] = 1e3 * rows["duration_s"]
    rows["exposed_ms"] = (rows["duration_ms"] - rows["overlapped_ms"]).clip(lower=0)
    rows["start_ms"] = 1e3 * (rows["start_s"] - rows["step"].map(begins).fillna(0.0))
    report = rows[COLUMNS].reset_index(drop=True)
    report.attrs |= {"steps": max(len(begins), 1), "exposed_ms": 1e3 * exposed_s}
    report.attrs["text"] = _summary(report)
    return report


def _summary(report: pd.DataFrame) -> str:
    """Describe a mean step in words."""
    mean = compare_reports({"": report}).iloc[0]
    lines = [
        f"{mean['collectives']:g} collectives per step, over {report['group_size'].max():g} ranks: "
        f"{mean['megabytes']:.1f} MB from each rank, {mean['under_way_ms']:.1f} ms if added up",
        f"computing hides {mean['hidden']:.0%} of that; for {mean['exposed_ms']:.1f} ms per step, "
        f"this rank only waits (for two at once, the time counts once)",
    ]
    for phase, rows in report.groupby("phase", sort=False):
        kinds = rows.groupby(["operation", "type"], sort=False)["bytes"].agg(["size", "sum"])
        words = ", ".join(
            f"{kind['size']} {operation} of {type_ or 'nothing'}, {kind['sum'] / 1e6:.3g} MB"
            for (operation, type_), kind in kinds.iterrows()
        )
        lines.append(f"{phase or 'outside any phase'}: {words}")
    return "\n".join(lines)


def compare_reports(reports: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Compare several tables of `comm_report`, one row each: what a step sends and what it costs.

    Columns, of a mean step: collectives, megabytes, largest_mb, under_way_ms (added up), hidden
    (the share that computing covers), exposed_ms.
    """
    rows = {}
    for name, report in reports.items():
        steps, duration_ms = report.attrs["steps"], report["duration_ms"].sum()
        rows[name] = {
            "collectives": len(report) / steps,
            "megabytes": report["bytes"].sum() / steps / 1e6,
            "largest_mb": report["bytes"].max() / 1e6,
            "under_way_ms": duration_ms / steps,
            "hidden": report["overlapped_ms"].sum() / duration_ms,
            "exposed_ms": report.attrs["exposed_ms"] / steps,
        }
    return pd.DataFrame.from_dict(rows, orient="index")
