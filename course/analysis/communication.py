"""What the ranks of runs send each other, with trainspeed's report of a trace."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from course.analysis.run_traces import read_trace
from course.runs import recordings
from course.runs.run import Run
from course.text import wrap_text
from trainspeed.traces import communication
from trainspeed.traces.communication import compare_reports
from trainspeed.traces.tables import computing

__all__ = ["comm_report", "compare_reports", "computing", "messages", "traced_runs"]


def comm_report(run: Run) -> pd.DataFrame:
    """List every collective in a run's trace; see `trainspeed.traces.communication.comm_report`.

    Raises:
        ValueError: the run has no trace, or the trace has no collective.
    """
    trace = read_trace(run)
    if trace.collectives.empty:
        raise ValueError(
            f"{trace.source} has no collective in it: launch with gpus=2 or more, and several "
            f"processes must have joined one group (TODOs process_group and data_parallel)"
        )
    report = communication.comm_report(trace)
    report.attrs["text"] = wrap_text(report.attrs["text"])
    return report


def messages(runs: Iterable[Run]) -> pd.DataFrame:
    """List every all-reduce in the traces of runs.

    Columns: ranks, bytes that each rank puts in, duration_s including the wait for the slowest
    rank, run.
    """
    rows = []
    for run in runs:
        for row in read_trace(run).collectives.itertuples():
            if row.operation == "all_reduce":
                rows.append((row.group_size, row.bytes, row.duration_s, run.name))
    return pd.DataFrame(rows, columns=["ranks", "bytes", "duration_s", "run"])


def traced_runs(machine: str, gpus: int = 0) -> dict[str, Run]:
    """List a machine's recorded runs with a trace of several ranks, by rung.

    If there is none, print that and return an empty dict.

    Args:
        gpus: how many GPUs; by default as many as possible.
    """
    known = machine in recordings.machines()
    runs = recordings.recorded_runs(machine, "communication") if known else []
    runs = [run for run in runs if run.record.trace]
    gpus = gpus or max((run.record.gpus for run in runs), default=0)
    by_rung = {run.config.rung: run for run in runs if run.record.gpus == gpus}
    if not by_rung:
        print(f"No traced run on {gpus or 'several'} GPUs is recorded for {machine}.")
    return by_rung
