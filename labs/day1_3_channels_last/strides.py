"""Memory layout by experiment: where numbers lie, which operators keep them so, who converts."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch

from course.analysis.traces.tables import LAYOUT, Trace
from course.training.evidence.calls import operator_calls
from course.training.evidence.operators import layout

PARTS = {"convolutions": "conv", "BatchNorm": "batch_norm"}  # by a word in the operator's name
CONVERSIONS, REST = "layout conversions", "all else"
INDICES = ("n", "c", "h", "w")  # image, channel, row, column


def addresses(tensor: torch.Tensor) -> pd.DataFrame:
    """Where each number of a 4-d tensor lies in memory: one row a number, in order of address.

    Columns: n, c, h, w and address, counted in numbers from the tensor's first one: the sum of
    each index times its stride.

    Raises:
        ValueError: a tensor that has not four dimensions.
    """
    if tensor.dim() != 4:
        raise ValueError(
            f"addresses needs a 4-d tensor (N, C, H, W), not one of {tuple(tensor.shape)}"
        )
    shape = tensor.shape
    index = torch.cartesian_prod(*(torch.arange(size) for size in shape)).reshape(-1, 4)
    table = pd.DataFrame(index.numpy(), columns=list(INDICES))
    table["address"] = (index * torch.tensor(tensor.stride())).sum(dim=1).numpy()
    return table.sort_values("address", ignore_index=True)


def operator_layouts(step: Callable[[], Any]) -> pd.DataFrame:
    """Which layout the operators that are called in `step` are given, and which they hand on.

    Columns: phase (forward | backward), operator, inputs and output (NCHW, NHWC, other, or
    "either", where one channel or one pixel leaves no difference), calls; in the order of first
    use. Only 4-d tensors are looked at. Views are left out: they move no number.
    """
    return operator_calls(step, _layouts)


def _layouts(tensors: list[torch.Tensor]) -> str:
    return ", ".join(dict.fromkeys(layout(tensor) for tensor in tensors if tensor.dim() == 4))


def conversions(call: Callable[..., Any], *inputs: Any) -> pd.DataFrame:
    """Tensors that convolutions copy into another layout, while `call(*inputs)` runs.

    A convolution whose inputs differ in layout makes a copy of one of them. The profiler sees
    these copies; what a library such as cuDNN converts by kernels of its own lies deeper, and is
    seen in a trace only (`course.analysis.traces.tables.layout_kernels`).

    Columns: operator (conv2d | convolution_backward), shape (N, C, H, W), copies, megabytes (of
    all these copies, at fp32's 4 bytes).
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or its start and stop are printed
    with torch.autograd.profiler.profile(use_kineto=False, record_shapes=True) as profiler:
        call(*inputs)
    found = Counter(
        (operator, tuple(event.input_shapes[0]))
        for event in profiler.function_events
        if event.name == "aten::clone" and (operator := _convolution_around(event))
    )
    rows = [
        (operator, shape, copies, copies * math.prod(shape) * 4 / 1e6)
        for (operator, shape), copies in found.items()
    ]
    return pd.DataFrame(rows, columns=["operator", "shape", "copies", "megabytes"])


def _convolution_around(event: Any) -> str:
    """The convolution within which an operator was called, or ""."""
    while event := event.cpu_parent:
        name = event.name.removeprefix("aten::")
        if name in ("conv2d", "convolution_backward"):
            return name
    return ""


def parts(trace: Trace) -> pd.DataFrame:
    """GPU time of a trace in four parts: convolutions, layout conversions, BatchNorm, all else.

    Conversions are the kernels that only turn one layout into the other or pad it; most run
    within convolutions, whose own time is counted without them.

    Columns: part, kernels, ms, share, machine.
    """
    rows = trace.kernels
    part = pd.Series(REST, index=rows.index)
    for name, word in PARTS.items():
        part[rows["operator"].str.contains(word).astype(bool)] = name
    part[rows["kernel"].str.contains(LAYOUT).astype(bool)] = CONVERSIONS
    found = rows["duration_s"].groupby(part).agg(["count", "sum"])
    found = found.reindex([*PARTS, CONVERSIONS, REST], fill_value=0)
    table = pd.DataFrame({"kernels": found["count"].astype(int), "ms": found["sum"] * 1e3})
    table = table.assign(share=table["ms"] / table["ms"].sum(), machine=trace.device)
    return table.rename_axis("part").reset_index()


def ms_by_channels(trace: Trace, operator: str) -> pd.Series:
    """GPU milliseconds of an operator's kernels, by the channels of its first input (N, C, H, W).

    Raises:
        ValueError: an operator that has no such kernel in the trace.
    """
    rows = trace.kernels[trace.kernels["operator"] == operator]
    rows = rows[[bool(shapes) and len(shapes[0]) == 4 for shapes in rows["input_shapes"]]]
    if rows.empty:
        known = ", ".join(sorted(set(trace.kernels["operator"]) - {""}))
        raise ValueError(f"{operator!r} has no kernel with a 4-d input; operators are {known}")
    channels = pd.Series([shapes[0][1] for shapes in rows["input_shapes"]], rows.index)
    return (rows["duration_s"] * 1e3).groupby(channels).sum().rename_axis("channels").rename("ms")
