"""What a profiler's trace says: time by kernel, operator and phase, idle time, copies.

A trace comes from `read` (PyTorch), `read_nsys` (Nsight Systems) or `read_ncu` (Nsight
Compute), always in the same tables; each question is then one function from a `Trace` to a
DataFrame. Where a trace has no GPU in it, the tables about a GPU are empty, and operators are
counted by the time of the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from course.analysis.traces.join import STEP
from course.analysis.traces.nsight import read_ncu, read_nsys
from course.analysis.traces.onednn import onednn, onednn_summary
from course.analysis.traces.reader import Trace, TraceError, read
from course.analysis.traces.spans import joined
from course.analysis.traces.thin import thin
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
    "of_run",
    "onednn",
    "onednn_summary",
    "read",
    "read_ncu",
    "read_nsys",
    "steps",
    "thin",
]

# cuDNN's kernels that only turn NCHW into NHWC, pad its channels, or back; MIOpen's likewise.
# PyTorch's own copies into another layout are named like any copy: see aten::contiguous.
LAYOUT = (
    r"(?i)nchw_?(?:to|2)_?nhwc|nhwc_?(?:to|2)_?nchw|nhwcAddPadding|tensorTransform"
    r"|batched_transpose"
)


def of_run(run: Run) -> Trace:
    """The trace of a run that was launched with profile_steps of 1 or more.

    Raises:
        ValueError: it has none; the message says what to do.
    """
    if run.record is None or not run.record.trace:
        raise ValueError(
            f"{run.name} [{run.status}] has no trace: fill TODO 5, and launch it with "
            f"profile_steps=1 or more"
        )
    return read(run.folder / run.record.trace)


def by_kernel(trace: Trace) -> pd.DataFrame:
    """GPU time by kernel name, longest first: name, count, seconds, mean_s, share."""
    return _by(trace.kernels, "kernel", "duration_s")


def by_operator(trace: Trace) -> pd.DataFrame:
    """Time by operator, longest first: name, count, seconds, mean_s, share, measured.

    `measured` is "GPU" where the trace has kernels: the seconds are those of the kernels that
    the operator launched, and the count is theirs. Else it is "CPU": the operator's own time
    on the host, without that of the operators within it.
    """
    on_gpu = len(trace.kernels) > 0
    data = (
        (trace.kernels, "operator", "duration_s") if on_gpu else (trace.operators, "name", "self_s")
    )
    return _by(*data).assign(measured="GPU" if on_gpu else "CPU")


def _by(rows: pd.DataFrame, name: str, seconds: str) -> pd.DataFrame:
    rows = rows.assign(name=rows[name].replace("", "(none known)"), seconds=rows[seconds])
    table = rows.groupby("name")["seconds"].agg(["count", "sum", "mean"]).reset_index()
    table = table.rename(columns={"sum": "seconds", "mean": "mean_s"})
    table["share"] = table["seconds"] / table["seconds"].sum()
    table = table.sort_values("seconds", ascending=False, kind="stable").reset_index(drop=True)
    return table[["name", "count", "seconds", "mean_s", "share"]]


def steps(trace: Trace) -> pd.DataFrame:
    """The steps that the trace holds whole, by the host's clock: step, start_s, end_s."""
    rows = trace.ranges[trace.ranges["name"].str.fullmatch(STEP.pattern, case=False).astype(bool)]
    return (
        pd.DataFrame(
            {
                "step": [int(STEP.fullmatch(name).group(1)) for name in rows["name"]],
                "start_s": rows["start_s"].to_numpy(float),
                "end_s": (rows["start_s"] + rows["duration_s"]).to_numpy(float),
            }
        )
        .drop_duplicates("step")
        .reset_index(drop=True)
    )


def copies(trace: Trace) -> pd.DataFrame:
    """Copies by direction and kind of memory: kind, memory, count, bytes, seconds, gb_per_s.

    From "Pageable" host memory a copy is slower, and the host waits for it; from "Pinned" it
    can run while the GPU computes.
    """
    rows = trace.copies.groupby(["kind", "memory"])
    table = rows.agg(count=("bytes", "size"), bytes=("bytes", "sum"), seconds=("duration_s", "sum"))
    table = table.reset_index().sort_values("seconds", ascending=False).reset_index(drop=True)
    return table.assign(gb_per_s=table["bytes"] / table["seconds"] / 1e9)


def layout_kernels(trace: Trace) -> pd.DataFrame:
    """Kernels that only turn NCHW into NHWC or back: as `by_kernel`, share of all GPU time.

    None of them is there once model and images are channels_last; a library that wants NHWC
    for its Tensor Cores runs them around every convolution otherwise.
    """
    table = by_kernel(trace)
    return table[table["name"].str.contains(LAYOUT).astype(bool)].reset_index(drop=True)


IDLE = [
    "step",
    "span_s",
    "busy_s",
    "busy_share",
    "gaps",
    "gap_s",
    "largest_gap_s",
    "largest_gap_start_s",
    "host_in_largest_gap",
    "launch_delay_s",
]


def idle(trace: Trace) -> pd.DataFrame:
    """When the GPU had nothing to compute, one row a step.

    Columns: `span_s`, from the last kernel of the step before (or the step's first) to its own
    last one; `busy_s` and `busy_share`, in which at least one kernel ran; `gaps`, how many times
    none did, `gap_s` all in all; the largest gap, its begin, and what the host did in it;
    `launch_delay_s`, the median time from the host's launch call to the kernel's start. A long
    delay is good: the host is ahead and the GPU has a queue. Empty without kernels in time.
    """
    kernels = trace.kernels[trace.kernels["start_s"].notna()].sort_values("start_s")
    if (kernels["step"] >= 0).any():
        kernels = kernels[kernels["step"] >= 0]
    end, rows = None, []
    for number, group in kernels.groupby("step"):
        begin = group["start_s"].min() if end is None else end
        ends = group["start_s"] + group["duration_s"]
        busy = joined(zip(group["start_s"].clip(lower=begin), ends.clip(lower=begin)))
        end = busy[-1][1]
        edges = [begin, *(edge for pair in busy for edge in pair)]
        gaps = [(a, b) for a, b in zip(edges[::2], edges[1::2]) if b > a]
        first, last = max(gaps, key=lambda gap: gap[1] - gap[0], default=(end, end))
        gap_s = sum(b - a for a, b in gaps)
        span_s, delay = end - begin, group["start_s"] - group["launch_s"]
        busy_share = (span_s - gap_s) / span_s if span_s else 0.0
        doing = host_between(trace, first, last) if gaps else ""
        rows.append(
            [
                number,
                span_s,
                span_s - gap_s,
                busy_share,
                len(gaps),
                gap_s,
                last - first,
                first,
                doing,
                delay.median(),
            ]
        )
    return pd.DataFrame(rows, columns=IDLE)


def host_between(trace: Trace, start_s: float, end_s: float) -> str:
    """What took the host longest between two times: "backward: aten::convolution_backward".

    Of operators the outermost count, and beside them calls into the driver and other ranges.
    Where all of these take less than half of the time it says so: Python, mostly.
    """
    known = trace.ranges["name"].str.fullmatch(STEP.pattern, case=False).astype(bool)
    other = trace.ranges[~known & ~trace.ranges["name"].isin(PHASES)]
    found = pd.concat([trace.operators[trace.operators["depth"] == 0], other, trace.calls])
    name, share = _longest(found, start_s, end_s)
    phase, _ = _longest(trace.ranges[trace.ranges["name"].isin(PHASES)], start_s, end_s)
    doing = name if share >= 0.5 else "Python, between operators"
    return f"{phase}: {doing}" if phase else doing


def _longest(rows: pd.DataFrame, start_s: float, end_s: float) -> tuple[str, float]:
    """The name that covers most of a stretch of time, and the share that it covers."""
    begin = rows["start_s"].clip(lower=start_s)
    end = (rows["start_s"] + rows["duration_s"]).clip(upper=end_s)
    covered = (end - begin).clip(lower=0).groupby(rows["name"]).sum()
    if covered.empty or covered.max() == 0:
        return "", 0.0
    return str(covered.idxmax()), float(covered.max() / (end_s - start_s))
