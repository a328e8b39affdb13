"""Where the time of an iteration goes: a model that adds up to the measured step.

The step and the wait for batches are from untraced iterations. What the rest consists of is from
the traced ones: the seconds of kernels on a GPU, which tracing does not change, or shares of the
operators' time on a CPU.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from trainspeed.profile import Profile
from trainspeed.recorder import TRACED
from trainspeed.traces import Trace, intervals_of, merge_intervals, overlap_s, steps

PRODUCT = re.compile(
    r"::_?(?:\w+_)?conv(?!ert)\w*|::(?:\w+_)?(?:linear|b?mm|addb?mm|baddbmm|matmul|einsum)(?:_\w+)?$"
    r"|attention|_attn_|onednn|mkldnn_(?!reorder)|extern_kernels"
)
# What a compiler fuses into one loop over memory: by element, or with a sum.
FUSIBLE = re.compile(
    r"::_?(?:native_)?(?:add|sub|rsub|mul|div|addc(?:mul|div)|neg|abs|exp|log|log1p|sqrt|rsqrt|pow"
    r"|square|relu|gelu|silu|mish|elu|tanh|sigmoid|hard\w+|leaky_relu|threshold|clamp\w*|where|lerp"
    r"|masked_fill|fill|zero|copy|dropout|bernoulli|mean|sum|var|std|(?:log_)?softmax"
    r"|(?:layer|batch|group)_norm|cross_entropy\w*|nll_loss|mse_loss|binary_cross_entropy|eq|ne|lt|gt"
    r"|le|ge)_?(?:_backward|_backward_data|_data)?$"
)
# An operator on a CPU that usually takes less is limited by its call, not by what it computes.
SMALL_S = 20e-6
LONG = 2.0  # times the median: an iteration that does something else, too
COLLECTIVE = re.compile(r"^(?:gloo|nccl|c10d)::?|^record_param_comms$")
FETCH = "enumerate(DataLoader)"
OPTIMIZER = "Optimizer.step#"
ZERO_GRAD = "Optimizer.zero_grad#"
IDLE = 0.1  # of the step in which the GPU waits, from which the host sets the pace
TRACING = 2.0  # by which tracing slows the host, about
FULL = 10.0  # times the usual launch, from which the GPU's queue was full
WAITS = re.compile(r"Synchronize$|^cudaMemcpy$|hipMemcpyWithStream")


@dataclass
class Parts:
    """Seconds of an iteration. The four parts after `step` add up to it.

    Attributes:
        data: waiting for batches, while the accelerator is idle (on a CPU: all of it).
        compute: kernels, or on a CPU operators.
        communication: collectives, while nothing computes.
        waiting: of communication, until the slowest rank has come, too; None if unknown.
        launch: the rest: Python, and on a GPU operators that it waits for.
        products: of compute, in matrix products and convolutions.
        slow_products: of products, what did not use Tensor Cores although their types could.
        tf32_products: of products, those of fp32 in Tensor Cores.
        layout: of compute, in kernels that only convert NCHW and NHWC.
        norms: of compute, in normalisations of batches, which are slow in NCHW.
        small: of compute, in operators that take so little time that their calls limit them (on a
            CPU; without the optimizer).
        fusible: of compute, in other operators that a compiler fuses (on a CPU, likewise).
        optimizer: of compute (on a CPU, of compute and launch), in the optimizer's step.
        hidden: of communication, what is hidden behind compute; not part of the step.
        host: what the host needs to launch everything, without waiting; None on a CPU.
        flop: of an iteration's products, by the shapes in the trace; 0 if unknown.
        launches: operators that the host calls.
        top: operators by seconds: name, seconds, types.
    """

    step: float
    data: float = 0.0
    compute: float = 0.0
    communication: float = 0.0
    waiting: float | None = None
    launch: float = 0.0
    products: float = 0.0
    slow_products: float = 0.0
    tf32_products: float = 0.0
    layout: float = 0.0
    norms: float = 0.0
    small: float = 0.0
    fusible: float = 0.0
    optimizer: float = 0.0
    hidden: float = 0.0
    host: float | None = None
    flop: float = 0.0
    launches: float = 0.0
    types: str = ""
    top: list[dict[str, Any]] = field(default_factory=list)


def parts_of(profile: Profile) -> Parts:
    """Split a profile's step into parts."""
    step, wait = profile.step_s, min(profile.mean("wait_s"), profile.step_s)
    parts = Parts(step, data=wait)
    trace = profile.trace
    windows = usual_windows(profile, steps(trace)) if trace is not None else ()
    if not len(windows):
        parts.optimizer = min(profile.mean("optimizer_s"), step)
        parts.compute = step - wait
        return parts
    spans = merge_intervals(zip(windows["start_s"], windows["end_s"]))
    count, fetched = len(windows), _ranges(trace, FETCH)
    fetched_s = _inside(fetched, spans)
    inside = _is_inside(trace.operators, spans) & ~_is_inside(trace.operators, fetched)
    operators = trace.operators[inside]
    parts.launches = len(operators) / count
    parts.flop = sum(map(_flop, operators.to_dict("records"))) / count
    if len(trace.kernels):
        _add_kernels(parts, profile, spans, fetched, count)
    else:
        _add_operators(parts, trace, operators, spans, fetched_s, count)
    return parts


def usual_windows(profile: Profile, windows: pd.DataFrame) -> pd.DataFrame:
    """Return the traced iterations that only train, if there are some.

    One that the end of the script cut off is none, and one may evaluate the model, too.
    """
    traced = [it for it in profile.values["iterations"] if it["kind"] == TRACED]
    if not traced:  # a trace that was recorded elsewhere
        return windows
    # A profiler of the script that doesn't record marks its own steps, too, with larger numbers.
    windows = windows[windows["step"] < len(traced)].reset_index(drop=True)
    seconds = windows["end_s"] - windows["start_s"]
    loops = pd.Series([it["loops"] for it in traced[: len(windows)]], index=windows.index)
    usual = windows[(loops == 0) & (seconds <= LONG * seconds.median())]
    return usual if len(usual) else windows


def _ranges(trace: Trace, prefix: str) -> list[tuple[float, float]]:
    rows = [trace.ranges, trace.operators]
    tables = [table[table["name"].str.startswith(prefix)] for table in rows]
    return merge_intervals([i for table in tables for i in intervals_of(table)])


def _inside(intervals: Any, spans: Any) -> float:
    return sum(overlap_s(interval, spans) for interval in intervals)


def _is_inside(table: pd.DataFrame, intervals: list[tuple[float, float]]) -> pd.Series:
    """Return which rows begin inside one of merged intervals."""
    inside = pd.Series(False, index=table.index)
    if intervals and len(table):
        starts = pd.IntervalIndex.from_tuples(intervals, closed="left")
        inside = pd.Series(starts.get_indexer(table["start_s"]) >= 0, index=table.index)
    return inside


def is_small(operators: pd.DataFrame) -> pd.Series:
    """Return which operators usually take less than SMALL_S with such inputs.

    Usually: one call may have been interrupted.
    """
    groups = operators.groupby([operators["name"], operators["input_shapes"].astype(str)])
    return groups["self_s"].transform("median") < SMALL_S


def _add_operators(
    parts: Parts, trace: Trace, operators: pd.DataFrame, spans: Any, fetched_s: float, count: int
) -> None:
    """Split a CPU's step by the shares of operators in the traced iterations."""
    wall = sum(end - begin for begin, end in spans) - fetched_s
    scale = count * (parts.step - parts.data) / wall if wall > 0 else 0.0
    is_range = operators["name"].str.startswith((OPTIMIZER, ZERO_GRAD, FETCH)).astype(bool)
    is_collective = operators["name"].str.contains(COLLECTIVE).astype(bool)
    work = operators[~is_range & ~is_collective]
    computing = merge_intervals(intervals_of(work))
    collectives = [*intervals_of(operators[is_collective]), *intervals_of(trace.collectives)]
    collective = merge_intervals(collectives)
    hidden_s = sum(overlap_s(interval, computing) for interval in collective)
    parts.hidden = hidden_s * scale / count
    parts.communication = max(0.0, _inside(collective, spans) - hidden_s) * scale / count
    parts.compute = min(_inside(computing, spans), wall) * scale / count
    rest = parts.step - parts.data - parts.compute - parts.communication
    parts.launch = max(0.0, rest)
    parts.optimizer = _inside(_ranges(trace, OPTIMIZER), spans) * scale / count
    total = work["self_s"].sum()
    per_second = parts.compute / total if total else 0.0  # the operators of threads overlap
    is_product = work["name"].str.contains(PRODUCT).astype(bool)
    parts.products = work.loc[is_product, "self_s"].sum() * per_second
    parts.types = _main_type(work[is_product])
    model = work[~_is_inside(work, _ranges(trace, OPTIMIZER))]
    small = is_small(model)
    is_fusible = model["name"].str.contains(FUSIBLE).astype(bool)
    parts.small = model.loc[small, "self_s"].sum() * per_second
    parts.fusible = model.loc[is_fusible & ~small, "self_s"].sum() * per_second
    parts.top = _top(work.assign(seconds=work["self_s"] * per_second), "name", count)


def _add_kernels(parts: Parts, profile: Profile, spans: Any, fetched: Any, count: int) -> None:
    """Split a GPU's step by the seconds of its kernels."""
    trace = profile.trace
    kernels = trace.kernels[trace.kernels["start_s"].notna()]
    if count < len(steps(trace)):
        launched = kernels.assign(start_s=kernels["launch_s"].fillna(kernels["start_s"]))
        kernels = kernels[_is_inside(launched, spans)]
    device = kernels["device"].mode().iloc[0]
    kernels = kernels[kernels["device"] == device]
    is_collective = kernels["kernel"].str.contains(r"nccl", case=False).astype(bool)
    computing = merge_intervals(intervals_of(kernels[~is_collective]))
    collective = merge_intervals(intervals_of(kernels[is_collective]))
    compute_s = sum(end - begin for begin, end in computing) / count
    collective_s = sum(end - begin for begin, end in collective) / count
    parts.hidden = sum(overlap_s(interval, computing) for interval in collective) / count
    busy = merge_intervals([*computing, *collective])
    fetched_s = sum(end - begin for begin, end in fetched)
    wait = parts.data
    exposed = 1 - sum(overlap_s(i, busy) for i in fetched) / fetched_s if fetched_s else 1.0
    parts.data *= max(0.0, exposed)
    parts.compute = min(compute_s, parts.step)
    parts.communication = min(collective_s - parts.hidden, parts.step - parts.compute)
    parts.data = min(parts.data, parts.step - parts.compute - parts.communication)
    parts.launch = parts.step - parts.compute - parts.communication - parts.data
    parts.host = _host_s(trace, spans, fetched) / count
    if parts.launch < IDLE * parts.step:  # tracing slows the host, and it does not set the pace
        parts.host /= TRACING
    blocked_s = profile.values.get("blocked_s", 0.0)
    parts.host = max(0.0, min(parts.host, parts.step - wait - blocked_s))
    _add_products(parts, trace, kernels[~is_collective], count)


def _host_s(trace: Trace, spans: Any, fetched: Any) -> float:
    """Return the seconds in which the host did not wait, in the traced iterations."""
    calls = trace.calls
    is_launch = calls["name"].str.contains("Launch").astype(bool)
    usual_s = calls.loc[is_launch, "duration_s"].median()
    is_full = is_launch & (calls["duration_s"] > FULL * usual_s)  # it waits for the queue
    waits = calls[is_full | calls["name"].str.contains(WAITS).astype(bool)]
    blocked = merge_intervals([*intervals_of(waits), *fetched])
    return sum(end - begin for begin, end in spans) - _inside(blocked, spans)


def _add_products(parts: Parts, trace: Trace, kernels: pd.DataFrame, count: int) -> None:
    from trainspeed.tensor_cores import tensor_core_report

    total = kernels["duration_s"].sum() / count
    per_second = parts.compute / total / count if total else 0.0
    is_product = kernels["operator"].str.contains(PRODUCT).astype(bool)
    is_product |= kernels["kernel"].str.contains(r"gemm|cutlass|cudnn|wgrad|dgrad|fmha|flash")
    parts.products = kernels.loc[is_product, "duration_s"].sum() * per_second
    report = tensor_core_report(trace)
    eligible = report[report["eligible"] == "yes"]
    slow_s = (eligible["other_s"] - eligible["layout_s"]).sum()  # layouts are a part of their own
    parts.slow_products = slow_s * per_second
    is_fp32 = eligible["types"].str.startswith("fp32").astype(bool)
    parts.tf32_products = eligible.loc[is_fp32, "tensor_core_s"].sum() * per_second
    parts.layout = eligible["layout_s"].sum() * per_second
    is_norm = kernels["operator"].str.contains("batch_norm").astype(bool)
    parts.norms = kernels.loc[is_norm, "duration_s"].sum() * per_second
    parts.types = eligible.iloc[0]["types"] if len(eligible) else ""
    ranges = _ranges(trace, OPTIMIZER)
    launched = kernels.assign(start_s=kernels["launch_s"].fillna(kernels["start_s"]))
    inside = _is_inside(launched, ranges)
    parts.optimizer = kernels.loc[inside, "duration_s"].sum() * per_second
    parts.top = _top(kernels.assign(seconds=kernels["duration_s"] * per_second), "operator", count)


def _top(rows: pd.DataFrame, name: str, count: int, most: int = 8) -> list[dict[str, Any]]:
    table = rows.groupby(name)["seconds"].agg(seconds="sum", calls="size")
    table["calls"] /= count
    table = table.sort_values("seconds", ascending=False).head(most).reset_index(names="name")
    return table.to_dict("records")


def _main_type(rows: pd.DataFrame) -> str:
    times: dict[str, float] = {}
    for types, seconds in zip(rows["input_types"], rows["self_s"]):
        kind = next((t for t in types if t), "") if isinstance(types, tuple) else ""
        times[kind] = times.get(kind, 0.0) + seconds
    return max(times, key=times.get) if times else ""


def _flop(row: dict[str, Any]) -> float:
    """Return the FLOP of a product by its shapes; a multiplication and an addition are two.

    A convolution's forward pass is counted with its backward pass, whose inputs have all shapes.
    """
    name, shapes = row["name"], row["input_shapes"]
    if not isinstance(shapes, tuple) or not name.startswith("aten::"):
        return 0.0
    shapes = [shape for shape in shapes if shape]
    try:
        if name in ("aten::mm", "aten::bmm"):
            return 2.0 * math.prod(shapes[0]) * shapes[1][-1]
        if name in ("aten::addmm", "aten::baddbmm"):
            return 2.0 * math.prod(shapes[1]) * shapes[2][-1]
        if name == "aten::convolution_backward":
            return 6.0 * math.prod(shapes[0]) * math.prod(shapes[2][1:])
        if re.fullmatch(r"aten::_(scaled_dot_product|flash)\w*attention\w*(?<!backward)", name):
            *batch, length, size = shapes[0]
            return 4.0 * math.prod(batch) * length * shapes[1][-2] * size
        if re.fullmatch(r"aten::_scaled_dot_product\w*attention\w*backward", name):
            *batch, length, size = shapes[1]
            return 8.0 * math.prod(batch) * length * shapes[2][-2] * size
    except (IndexError, TypeError):
        return 0.0
    return 0.0
