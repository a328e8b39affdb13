"""Summarize a profiler's trace: time by kernel and operator, and idle time.

A trace comes from `read`; the profiler lab reads those of Nsight Systems and Nsight Compute
into the same tables. Each function turns a `Trace` into a DataFrame. Without a
GPU in the trace, the tables about a GPU are empty, and operators have their time on the CPU.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from trainspeed.traces.collectives import NCCL
from trainspeed.traces.intervals import Intervals, intervals_of, merge_intervals
from trainspeed.traces.reader import STEP, Trace, TraceError, read

__all__ = ["Trace", "TraceError", "by_kernel", "by_operator", "idle", "read", "steps"]

# Kernels of cuDNN and MIOpen that only turn NCHW into NHWC or back, or pad its channels.
# PyTorch's copies into a different layout have the name of any copy: see aten::contiguous.
LAYOUT = (
    r"(?i)nchw_?(?:to|2)_?nhwc|nhwc_?(?:to|2)_?nchw|nhwcAddPadding|tensorTransform"
    r"|batched_transpose"
)
# CPU operators that wait for other ranks, or contain such operators: they compute nothing.
NO_COMPUTING = r"c10d::|autograd::|torch::distributed|torch\.distributed|record_param|nccl:"


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
    names = trace.ranges["name"]
    rows = trace.ranges[names.str.fullmatch(STEP.pattern, case=False).astype(bool)]
    table = pd.DataFrame(
        {
            "step": [int(STEP.fullmatch(name).group(1)) for name in rows["name"]],
            "start_s": rows["start_s"].astype(float),
            "end_s": (rows["start_s"] + rows["duration_s"]).astype(float),
        }
    )
    return table.drop_duplicates("step", ignore_index=True)


def layout_kernels(trace: Trace) -> pd.DataFrame:
    """List kernels that only turn NCHW into NHWC or back, as `by_kernel`; share is of all GPU time.

    There are none if model and images are channels_last. Otherwise a library that needs NHWC for
    its Tensor Cores runs them around every convolution.
    """
    table = by_kernel(trace)
    return table[table["name"].str.contains(LAYOUT).astype(bool)].reset_index(drop=True)


def idle(trace: Trace) -> pd.DataFrame:
    """Measure when a GPU had nothing to compute, one row per device and step.

    Columns: device, its number; step; `span_s`, from the last kernel of the step before (or the
    step's first) to its own last one; `busy_share` of it, in which at least one kernel ran;
    `gap_s`, the rest; `launch_delay_s`, the median time from the host's launch call to the
    kernel's start. A long
    delay is good: the host is ahead and the GPU has a queue. Empty if kernels have no times.
    """
    kernels = trace.kernels[trace.kernels["start_s"].notna()].sort_values("start_s")
    if (kernels["step"] >= 0).any():
        kernels = kernels[kernels["step"] >= 0]
    end, rows = {}, []
    for (device, step), group in kernels.groupby(["device", "step"], dropna=False):
        begin = end.get(device, group["start_s"].min())
        ends = group["start_s"] + group["duration_s"]
        busy = merge_intervals(zip(group["start_s"].clip(lower=begin), ends.clip(lower=begin)))
        end[device] = busy[-1][1]
        busy_s, span_s = sum(stop - start for start, stop in busy), end[device] - begin
        share = busy_s / span_s if span_s else 0.0
        delay_s = (group["start_s"] - group["launch_s"]).median()
        rows.append((device, step, span_s, share, span_s - busy_s, delay_s))
    columns = ["device", "step", "span_s", "busy_share", "gap_s", "launch_delay_s"]
    return pd.DataFrame(rows, columns=columns)


def computing(trace: Trace, phase: str | None = None, device: Any = None) -> Intervals:
    """List the stretches of time (begin, end) in which the rank computed.

    Args:
        phase: only what this phase of the step launched.
        device: only this GPU, by its number in the trace.
    """
    if trace.kernels.empty:
        names = trace.operators["name"]
        computes = names.str.contains("::") & ~names.str.match(NO_COMPUTING)
        rows = trace.operators[computes.astype(bool)]
    else:
        rows = trace.kernels[~trace.kernels["kernel"].str.match(NCCL).astype(bool)]
        rows = rows if pd.isna(device) else rows[rows["device"] == device]
    return merge_intervals(intervals_of(rows[rows["phase"] == phase] if phase else rows))
