"""Summarize a profiler's trace: time by kernel, operator and phase, idle time, copies.

A trace comes from `read`; `labs.day1_5_profiler` reads those of Nsight Systems and Nsight Compute
into the same tables. Each function turns a `Trace` into a DataFrame. Without a
GPU in the trace, the tables about a GPU are empty, and operators have their time on the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from course.analysis.traces.intervals import merge_intervals
from course.analysis.traces.reader import STEP, Trace, TraceError, read
from course.runs.record import PHASES

if TYPE_CHECKING:
    from course.runs.run import Run

__all__ = [
    "Trace",
    "TraceError",
    "by_kernel",
    "by_operator",
    "copies",
    "idle",
    "layout_kernels",
    "read_run",
    "read",
    "steps",
]

# Kernels of cuDNN and MIOpen that only turn NCHW into NHWC or back, or pad its channels.
# PyTorch's copies into a different layout have the name of any copy: see aten::contiguous.
LAYOUT = (
    r"(?i)nchw_?(?:to|2)_?nhwc|nhwc_?(?:to|2)_?nchw|nhwcAddPadding|tensorTransform"
    r"|batched_transpose"
)


def read_run(run: Run) -> Trace:
    """Read the trace of a run that was launched with profile_steps of 1 or more.

    Raises:
        ValueError: the run has no trace; the message explains what to do.
    """
    if run.record is None or not run.record.trace:
        raise ValueError(
            f"{run.name} [{run.status}] has no trace: fill TODO 5, and launch it with "
            f"profile_steps=1 or more"
        )
    return read(run.folder / run.record.trace)


def by_kernel(trace: Trace) -> pd.DataFrame:
    """Sum GPU time by kernel name, longest first: name, count, seconds, mean_s, share."""
    return _by(trace.kernels, "kernel", "duration_s")


def by_operator(trace: Trace) -> pd.DataFrame:
    """Sum time by operator, longest first: name, count, seconds, mean_s, share, measured.

    If the trace has kernels, `measured` is "GPU", and seconds and count are those of the kernels
    that the operator launched. Otherwise it is "CPU", and seconds are the operator's time on the
    host, without the operators inside it.
    """
    if len(trace.kernels):
        return _by(trace.kernels, "operator", "duration_s").assign(measured="GPU")
    return _by(trace.operators, "name", "self_s").assign(measured="CPU")


def _by(rows: pd.DataFrame, name: str, seconds: str) -> pd.DataFrame:
    rows = rows.assign(name=rows[name].replace("", "(none known)"))
    table = rows.groupby("name")[seconds].agg(count="size", seconds="sum", mean_s="mean")
    table["share"] = table["seconds"] / table["seconds"].sum()
    return table.sort_values("seconds", ascending=False, kind="stable").reset_index()


def steps(trace: Trace) -> pd.DataFrame:
    """List the complete steps of a trace, by the host's clock: step, start_s, end_s."""
    rows = trace.ranges[_is_step(trace.ranges["name"])]
    table = pd.DataFrame(
        {
            "step": [int(STEP.fullmatch(name).group(1)) for name in rows["name"]],
            "start_s": rows["start_s"].astype(float),
            "end_s": (rows["start_s"] + rows["duration_s"]).astype(float),
        }
    )
    return table.drop_duplicates("step", ignore_index=True)


def _is_step(names: pd.Series) -> pd.Series:
    return names.str.fullmatch(STEP.pattern, case=False).astype(bool)


def copies(trace: Trace) -> pd.DataFrame:
    """Sum copies by direction and kind of memory: kind, memory, count, bytes, seconds, gb_per_s.

    A copy from "Pageable" host memory is slower, and the host waits for it; one from "Pinned"
    memory can run while the GPU computes.
    """
    rows = trace.copies.groupby(["kind", "memory"], as_index=False)
    table = rows.agg(count=("bytes", "size"), bytes=("bytes", "sum"), seconds=("duration_s", "sum"))
    table = table.sort_values("seconds", ascending=False, ignore_index=True)
    return table.assign(gb_per_s=table["bytes"] / table["seconds"] / 1e9)


def layout_kernels(trace: Trace) -> pd.DataFrame:
    """List kernels that only turn NCHW into NHWC or back, as `by_kernel`; share is of all GPU time.

    There are none if model and images are channels_last. Otherwise a library that needs NHWC for
    its Tensor Cores runs them around every convolution.
    """
    table = by_kernel(trace)
    return table[table["name"].str.contains(LAYOUT).astype(bool)].reset_index(drop=True)


IDLE_COLUMNS = (
    "step span_s busy_s busy_share gaps gap_s largest_gap_s largest_gap_start_s "
    "host_in_largest_gap launch_delay_s"
)


def idle(trace: Trace) -> pd.DataFrame:
    """Measure when the GPU had nothing to compute, one row per step.

    Columns: `span_s`, from the last kernel of the step before (or the step's first) to its own
    last one; `busy_s` and `busy_share`, in which at least one kernel ran; `gaps`, the number of
    times that none did, `gap_s` their sum; the largest gap, its begin, and what the host did in it;
    `launch_delay_s`, the median time from the host's launch call to the kernel's start. A long
    delay is good: the host is ahead and the GPU has a queue. Empty if kernels have no times.
    """
    kernels = trace.kernels[trace.kernels["start_s"].notna()].sort_values("start_s")
    if (kernels["step"] >= 0).any():
        kernels = kernels[kernels["step"] >= 0]
    end, rows = None, []
    for step, group in kernels.groupby("step"):
        begin = group["start_s"].min() if end is None else end
        ends = group["start_s"] + group["duration_s"]
        busy = merge_intervals(zip(group["start_s"].clip(lower=begin), ends.clip(lower=begin)))
        end = busy[-1][1]
        edges = [begin, *(edge for interval in busy for edge in interval)]
        gaps = [(start, stop) for start, stop in zip(edges[::2], edges[1::2]) if stop > start]
        start, stop = max(gaps, key=lambda gap: gap[1] - gap[0], default=(end, end))
        gap_s, span_s = sum(stop - start for start, stop in gaps), end - begin
        rows.append(
            {
                "step": step,
                "span_s": span_s,
                "busy_s": span_s - gap_s,
                "busy_share": (span_s - gap_s) / span_s if span_s else 0.0,
                "gaps": len(gaps),
                "gap_s": gap_s,
                "largest_gap_s": stop - start,
                "largest_gap_start_s": start,
                "host_in_largest_gap": host_between(trace, start, stop) if gaps else "",
                "launch_delay_s": (group["start_s"] - group["launch_s"]).median(),
            }
        )
    return pd.DataFrame(rows, columns=IDLE_COLUMNS.split())


def host_between(trace: Trace, start_s: float, end_s: float) -> str:
    """Name what took the host longest between two times: "backward: aten::convolution_backward".

    The candidates are outermost operators, calls into the driver and other ranges. If none of
    them takes half of the time, it is "Python, between operators".
    """
    ranges = trace.ranges
    is_phase = ranges["name"].isin(PHASES)
    named = ranges[~is_phase & ~_is_step(ranges["name"])]
    outermost = trace.operators[trace.operators["depth"] == 0]
    name, share = _longest(pd.concat([outermost, named, trace.calls]), start_s, end_s)
    phase, _ = _longest(ranges[is_phase], start_s, end_s)
    activity = name if share >= 0.5 else "Python, between operators"
    return f"{phase}: {activity}" if phase else activity


def _longest(rows: pd.DataFrame, start_s: float, end_s: float) -> tuple[str, float]:
    """Return the name that covers most of an interval, and the share that it covers."""
    begin = rows["start_s"].clip(lower=start_s)
    end = (rows["start_s"] + rows["duration_s"]).clip(upper=end_s)
    seconds = (end - begin).clip(lower=0).groupby(rows["name"]).sum()
    if seconds.empty or seconds.max() == 0:
        return "", 0.0
    return str(seconds.idxmax()), float(seconds.max() / (end_s - start_s))
