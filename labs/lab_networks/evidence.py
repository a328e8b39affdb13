"""Evidence of a step: the formats of its products, and where the GPU's time goes."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from course.analysis.tensor_cores import tensor_core_report, tensor_core_summary
from course.analysis.tensor_cores.rules import classify
from course.analysis.traces.intervals import intervals_of, merge_intervals
from course.analysis.traces.reader import read
from course.analysis.traces.tables import Trace, by_kernel

PRODUCTS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose3d, nn.Linear)
FORMAT_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
KERNELS, NAME_LENGTH = 4, 90  # limits of a step's summary
TRACED_STEP = "measured"  # the range of the step in a trace
# What an operator does, by its name; the first that fits.
KINDS = (
    ("products", r"conv(?!ert)|Conv(?!ert)|\b(add)?mm\b|linear"),
    ("normalisation", r"norm|Norm"),
    ("copies", r"copy|contiguous|clone"),
    ("others", ""),
)


@contextmanager
def count_formats(model: nn.Module) -> Iterator[Counter[str]]:
    """Count the format of each product's output in the context."""
    counts: Counter[str] = Counter()

    def count(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        counts[FORMAT_NAMES.get(output.dtype, str(output.dtype))] += 1

    modules = [module for module in model.modules() if isinstance(module, PRODUCTS)]
    hooks = [module.register_forward_hook(count) for module in modules]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def trace_step(step: Callable[[], Any]) -> dict[str, Any]:
    """Trace one step on a GPU, and summarize it as `summarize` does."""
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as profiler:
        if distributed.is_initialized():
            # Ranks start tracing at different times; the first would wait in its step.
            distributed.barrier()
            torch.cuda.synchronize()
        with record_function(TRACED_STEP):
            step()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return summarize(only_step(read(path)))


def only_step(trace: Trace) -> Trace:
    """Return the trace without what the GPU did before the range TRACED_STEP."""
    begin = trace.ranges.loc[trace.ranges["name"] == TRACED_STEP, "start_s"].min()
    kernels, copies = (part[part["start_s"] >= begin] for part in (trace.kernels, trace.copies))
    return replace(trace, kernels=kernels, copies=copies)


def summarize(trace: Trace) -> dict[str, Any]:
    """Summarize a traced step.

    Keys: gpu_s, tensor_core_share, eligible_share and so on (`tensor_core_summary`); kinds (shares
    by what operators do); kernels, the longest (kernel, share, verdict about Tensor Cores); and
    those of `busy_seconds`.
    """
    report = tensor_core_report(trace)
    (summary,) = tensor_core_summary(step=report).drop(columns="name").to_dict("records")
    kernels = by_kernel(trace).head(KERNELS)[["name", "share"]].rename(columns={"name": "kernel"})
    kernels["verdict"] = [classify(name).verdict for name in kernels["kernel"]]
    kernels["kernel"] = kernels["kernel"].str[:NAME_LENGTH]
    shares = report.groupby(report["operator"].map(kind))["gpu_share"].sum()
    return summary | {
        "kinds": shares.reindex([name for name, _ in KINDS], fill_value=0.0).to_dict(),
        "kernels": kernels.to_dict("records"),
        **busy_seconds(trace),
    }


def busy_seconds(trace: Trace) -> dict[str, float]:
    """Return how long the GPU was busy.

    Keys: busy_s, with kernels and copies; communication_s, with NCCL's kernels; exposed_s, with
    nothing but communication.
    """

    def total(spans: list[tuple[float, float]]) -> float:
        return sum(end - begin for begin, end in spans)

    is_nccl = trace.kernels["kernel"].str.contains("nccl")
    work = [*intervals_of(trace.kernels[~is_nccl]), *intervals_of(trace.copies)]
    communication = intervals_of(trace.kernels[is_nccl])
    busy_s = total(merge_intervals([*work, *communication]))
    return {
        "busy_s": busy_s,
        "communication_s": total(communication),
        "exposed_s": busy_s - total(merge_intervals(work)),
    }


def kind(operator: str) -> str:
    """Return what an operator does, one of KINDS, by its name."""
    return next(name for name, pattern in KINDS if re.search(pattern, operator))
