"""In which format was it really computed? Evidence, not what was asked for."""

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

from course.analysis.traces.intervals import intervals_of, merge_intervals
from course.analysis.traces.reader import read
from course.analysis.traces.tables import Trace
from course.analysis.traces.tensor_cores.report import (
    tensor_core_kernels,
    tensor_core_report,
    tensor_core_summary,
)

PRODUCTS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose3d, nn.Linear)
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# Of a step, the longest are kept, and of kernels' names the beginning.
KERNELS, OPERATORS, LETTERS = 4, 6, 90
COMMUNICATION = "nccl"
MEASURED = "measured"  # the range of the step that counts
# What an operator does, by its name; the first that fits.
KINDS = (
    ("products", r"conv(?!ert)|Conv(?!ert)|\b(add)?mm\b|linear"),
    ("normalisation", r"norm|Norm"),
    ("copies", r"copy|contiguous|clone"),
)


@contextmanager
def formats(model: nn.Module) -> Iterator[Counter[str]]:
    """How many convolutions and products give which format, while this lasts."""
    found: Counter[str] = Counter()

    def note(_module: nn.Module, _given: Any, out: torch.Tensor) -> None:
        found[SHORT.get(out.dtype, str(out.dtype))] += 1

    parts = [each for each in model.modules() if isinstance(each, PRODUCTS)]
    hooks = [each.register_forward_hook(note) for each in parts]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def on_gpu(step: Callable[[], Any]) -> dict[str, Any]:
    """Where the GPU's time of one step goes, from its kernels; nothing, without a GPU.

    Keys: gpu_s; tensor_core_share, eligible_share and so on, as `tensor_core_summary` has them;
    kinds, the shares by what operators do (products, normalisation, copies, others); kernels,
    the longest: kernel, share of the time, verdict about Tensor Cores; operators, the longest:
    operator, share; and `busy`'s.
    """
    if not torch.cuda.is_available():
        return {}
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as p:
        if distributed.is_initialized():
            # Ranks are not ready to trace at the same time; who is first would wait in its step.
            distributed.barrier()
            torch.cuda.synchronize()
        with record_function(MEASURED):
            step()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        p.export_chrome_trace(str(path))
        return told(measured(read(path)))


def measured(trace: Trace) -> Trace:
    """The same without what the GPU did before the range MEASURED began."""
    begin = trace.ranges.loc[trace.ranges["name"] == MEASURED, "start_s"].min()
    parts = {"kernels": trace.kernels, "copies": trace.copies}
    return replace(trace, **{name: rows[rows["start_s"] >= begin] for name, rows in parts.items()})


def told(trace: Trace) -> dict[str, Any]:
    """The same of a trace."""
    report = tensor_core_report(trace)
    (summary,) = tensor_core_summary(step=report).drop(columns="name").to_dict("records")
    kernels = tensor_core_kernels(trace).head(KERNELS)
    kernels = kernels.assign(kernel=kernels["kernel"].str[:LETTERS])
    longest = kernels[["kernel", "share", "verdict"]].to_dict("records")
    operators = [
        {"operator": row.operator, "share": row.gpu_share}
        for row in report.head(OPERATORS).itertuples()
    ]
    return summary | {
        "kinds": kinds(report),
        "kernels": longest,
        "operators": operators,
        **busy(trace),
    }


def busy(trace: Trace) -> dict[str, float]:
    """How long the GPU was at work: busy_s, with anything, copies too; communication_s, NCCL's
    kernels; exposed_s, the part of busy_s in which it did nothing but communicate."""
    sends = trace.kernels["kernel"].str.contains(COMMUNICATION)
    own = [*intervals_of(trace.kernels[~sends]), *intervals_of(trace.copies)]
    sent = intervals_of(trace.kernels[sends])
    of_own, of_all = (sum(e - b for b, e in merge_intervals(each)) for each in (own, [*own, *sent]))
    return {
        "busy_s": of_all,
        "communication_s": sum(end - begin for begin, end in sent),
        "exposed_s": of_all - of_own,
    }


def kinds(report: Any) -> dict[str, float]:
    """Shares of the GPU's time by what its operators do."""
    shares = dict.fromkeys([*(name for name, _ in KINDS), "others"], 0.0)
    for row in report.itertuples():
        shares[kind(row.operator)] += row.gpu_share
    return shares


def kind(operator: str) -> str:
    """What an operator does, by its name: one of KINDS, or "others"."""
    return next((name for name, pattern in KINDS if re.search(pattern, operator)), "others")
