"""Memory layout by experiment: addresses, layouts of operators, conversions, and their time."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch

from course import trace_path
from course.analysis import read_trace
from course.training import layout, operator_calls
from trainspeed import traces

PARTS = {"convolutions": "conv", "BatchNorm": "batch_norm"}  # by a word in the operator's name
CONVERSIONS, REST = "layout conversions", "all else"


def addresses(tensor: torch.Tensor) -> pd.DataFrame:
    """Return where each number of a 4-d tensor is in memory, in the order of addresses.

    Columns: n, c, h, w and address, counted in numbers from the tensor's first one: the sum of
    each index times its stride.

    Raises:
        ValueError: the tensor does not have four dimensions.
    """
    if tensor.dim() != 4:
        raise ValueError(
            f"addresses needs a 4-d tensor (N, C, H, W), not one of {tuple(tensor.shape)}"
        )
    table = torch.cartesian_prod(*map(torch.arange, tensor.shape)).reshape(-1, 4)
    address = (table * torch.tensor(tensor.stride())).sum(dim=1)
    table = pd.DataFrame(table.numpy(), columns=list("nchw")).assign(address=address.numpy())
    return table.sort_values("address", ignore_index=True)


def operator_layouts(step: Callable[[], Any]) -> pd.DataFrame:
    """Return the layouts of the operators that a step calls.

    Columns: phase (forward | backward), operator, inputs and output (NCHW, NHWC, other, or
    "either" if one channel or one pixel makes no difference), calls; in the order of first use.
    Only 4-d tensors count. Views are left out: they move no number.
    """

    def layouts(tensors: list[torch.Tensor]) -> str:
        return ", ".join(dict.fromkeys(layout(tensor) for tensor in tensors if tensor.dim() == 4))

    return operator_calls(step, layouts)


def conversions(call: Callable[..., Any], *inputs: Any) -> pd.DataFrame:
    """Return the tensors that convolutions copy to a different layout in `call(*inputs)`.

    A convolution whose inputs have different layouts copies one of them. Copies by kernels of a
    library, such as cuDNN, appear only in a trace: `layout_kernels` lists them.

    Columns: operator (conv2d | convolution_backward), shape (N, C, H, W), copies, megabytes (of
    all these copies, with fp32's 4 bytes).
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler prints its start and stop
    with torch.autograd.profiler.profile(use_kineto=False, record_shapes=True) as profiler:
        call(*inputs)
    counts = Counter(
        (operator, tuple(event.input_shapes[0]))
        for event in profiler.function_events
        if event.name == "aten::clone" and (operator := _parent_convolution(event))
    )
    rows = [
        (operator, shape, copies, copies * math.prod(shape) * 4 / 1e6)
        for (operator, shape), copies in counts.items()
    ]
    return pd.DataFrame(rows, columns=["operator", "shape", "copies", "megabytes"])


def _parent_convolution(event: Any) -> str:
    """Return the convolution that called an operator, or ""."""
    while event := event.cpu_parent:
        name = event.name.removeprefix("aten::")
        if name in ("conv2d", "convolution_backward"):
            return name
    return ""


def time_by_part(machine: str, *rungs: str) -> pd.DataFrame:
    """Return the GPU milliseconds of recorded steps by part, with a column per rung.

    Conversions are kernels that only change or pad a layout; most run within convolutions, whose
    time is counted without them. `attrs["machine"]` is the GPU's name.
    """
    columns = {}
    for rung in rungs:
        trace = read_trace(trace_path(machine, rung))
        rows = trace.kernels
        part = pd.Series(REST, index=rows.index)
        for name, word in PARTS.items():
            part[rows["operator"].str.contains(word).astype(bool)] = name
        part[rows["kernel"].str.contains(traces.LAYOUT).astype(bool)] = CONVERSIONS
        columns[rung] = 1e3 * rows["duration_s"].groupby(part).sum()
    table = pd.DataFrame(columns).reindex([*PARTS, CONVERSIONS, REST]).fillna(0.0)
    table.attrs["machine"] = trace.device
    return table.rename_axis("ms of GPU time")


def batch_norm_by_channels(machine: str, *rungs: str) -> pd.DataFrame:
    """Return the GPU milliseconds of BatchNorm's backward by channels, with a column per rung."""
    columns = {}
    for rung in rungs:
        rows = read_trace(trace_path(machine, rung)).kernels
        rows = rows[rows["operator"] == "aten::native_batch_norm_backward"]
        rows = rows[rows["input_shapes"].map(lambda shapes: bool(shapes) and len(shapes[0]) == 4)]
        channels = rows["input_shapes"].map(lambda shapes: shapes[0][1])
        columns[rung] = 1e3 * rows["duration_s"].groupby(channels).sum()
    return pd.DataFrame(columns).rename_axis("channels")
