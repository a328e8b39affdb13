"""The traces of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from course.runs.run import RecordedRun, Run
from course.training.recorder import TRACE_FILE
from trainspeed.traces import Trace, read


def read_trace(source: Run | Path) -> Trace:
    """Read the trace of a run that was launched with profile_steps of 1 or more.

    Args:
        source: the run, or what `course.trace_path` returns.

    Raises:
        ValueError: the run has no trace, or the file is not one; the message explains what to do.
    """
    if isinstance(source, Run):
        if source.record is None or not source.record.trace:
            raise ValueError(
                f"{source.name} [{source.status}] has no trace: fill TODO profiler, and launch it "
                f"with profile_steps=1 or more"
            )
        source = source.folder / source.record.trace
    trace, recorded = read(source), RecordedRun(source.parent)
    date = f", recorded {recorded.record.started_at[:10]}" if recorded.row else ""
    name = trace.source.replace(TRACE_FILE, source.parent.name)  # all files have the same name
    return replace(trace, recorded=date, source=name)
