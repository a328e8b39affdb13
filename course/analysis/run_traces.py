"""The traces of runs, and their kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from course.runs.run import RecordedRun, Run
from course.text import wrap_text
from course.training.profiling import ONEDNN_FILE
from course.training.recorder import TRACE_FILE
from trainspeed.tensor_cores import NO_KERNELS, describe, tensor_core_report
from trainspeed.tensor_cores.onednn import onednn, onednn_summary
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


def kernels_of_run(run: Run) -> pd.DataFrame:
    """Report the Tensor Cores of a traced run; for a CPU run, oneDNN's kernels.

    Its `attrs["text"]` has a summary in words.

    Raises:
        ValueError: the run has no trace.
    """
    trace, account = read_trace(run), run.folder / ONEDNN_FILE
    if len(trace.kernels):
        table = tensor_core_report(trace)
        text = describe(table)
    elif account.exists():
        table = onednn(account)
        isa = table.attrs["isa"]
        text = onednn_summary(table) + (f" oneDNN detected: {isa}." if isa else "")
    else:
        table, text = pd.DataFrame(), NO_KERNELS
    table.attrs["text"] = wrap_text(text)
    return table
