"""The roofline: what a step computes and moves, and how close runs come to a machine's limits.

A program that does `i` FLOP per byte cannot do more than min(FLOP/s of the compute units,
i × bytes/s of the memory): Williams, Waterman and Patterson, "Roofline: an insightful visual
performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from course._compat import TorchDispatchMode, arguments_of, tensors_in
from course.analysis.timing import FORMATS, number_format, seconds
from course.config import Config, from_dict
from course.runs.recordings import load, origin
from course.runs.run import Run, rows_of
from course.training.memory_prediction import fake_step
from course.training.recorder import Recorder
from trainspeed.memory import update_once

# Operators that read inputs twice, with the places of those inputs: in training, BatchNorm needs
# the batch's mean before it can subtract it, and its backward needs two sums (of the gradient and
# the input) before it can compute a gradient.
READ_TWICE = {"native_batch_norm": (0,), "native_batch_norm_backward": (0, 1)}
ALLOCATIONS = ("empty", "new_empty", "empty_like", "new_empty_strided", "empty_strided")
COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}  # several times as large as the last cache
LARGEST_SIDE = 8192  # of the matrices
# Seconds of the shortest product: long compared with its launch, and with the time for which
# another program may use the core.
PRODUCT_S = {"cpu": 0.05, "cuda": 0.01}


@dataclass(frozen=True)
class Cost:
    """The cost of one image in a training step: forward, backward, its share of the update."""

    flop: float
    bytes: float

    @property
    def flop_per_byte(self) -> float:
        """Return the arithmetic intensity, the roofline's horizontal axis."""
        return self.flop / self.bytes


class _Traffic(TorchDispatchMode):
    """Counts calls and bytes by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if moved := _moved_bytes(operator, name, args, kwargs or {}, result):
            self.calls[name] += 1
            self.bytes[name] += moved
        return result


def operators(config: Config) -> pd.DataFrame:
    """Count what each operator costs per image of a training step, the most bytes first.

    Columns: operator, calls (per step), gflop and megabytes (per image), flop_per_byte. Only the
    settings that change the cost are used, with synthetic data. The step runs on fake tensors.

    FLOP are those of convolutions and matrix products (PyTorch's FlopCounterMode), where a
    multiplication and an addition count as two. Bytes are those of eager mode: each operator reads
    its inputs from memory and writes its outputs to it, because no cache is as large as a batch.
    Views move nothing, BatchNorm reads its input twice, convolution_backward has two kernels that
    both read the output's gradient, and an operator in place reads and writes. Layout conversions
    inside a library are not counted.

    Raises:
        ValueError: PyTorch rejects the step.
    """
    settings = Config(
        model=config.model,
        image_px=config.image_px,
        batch_size=config.batch_size,
        precision="bf16" if config.is_half else "fp32",  # both 16-bit formats have two bytes
        channels_last=config.channels_last,
        data="synthetic",
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    return _count_once(settings).copy()


@lru_cache(maxsize=32)
def _count_once(config: Config) -> pd.DataFrame:
    with fake_step(config) as step:
        update_once(step.optimizer)  # creates the optimizer's state
        return count_operators(step.run, config.batch_size)


def count_operators(run: Callable[[], Any], images: int) -> pd.DataFrame:
    """Return the table of `operators` for any step on fake tensors.

    Args:
        run: runs the step.
        images: the number of images in it.
    """
    with FlopCounterMode(display=False) as counter, _Traffic() as traffic:
        run()
    flop = {op.__name__: count for op, count in counter.get_flop_counts()["Global"].items()}
    table = pd.DataFrame({"calls": traffic.calls, "megabytes": traffic.bytes, "gflop": flop})
    table = table.fillna(0).rename_axis("operator").reset_index()
    table["flop_per_byte"] = table["gflop"] / table["megabytes"]
    table["gflop"] /= images * 1e9
    table["megabytes"] /= images * 1e6
    return table.sort_values("megabytes", ascending=False, ignore_index=True)


def fusion_traffic(table: pd.DataFrame) -> pd.DataFrame:
    """Return megabytes per image by operator: eager, and if a compiler fuses pointwise operators.

    A fused operator is part of the kernel before or after it. Then ReLU moves nothing; an addition
    moves one of its two inputs, a third of its traffic; and ReLU's backward moves nothing if its
    mask is recomputed from what the kernel reads anyway, or else the mask, also a third. A
    compiler's schedule may move more.

    Args:
        table: from `operators`, indexed by operator.

    Returns:
        By operator; columns: eager, least, most.
    """
    eager = table["megabytes"]
    shares = {"relu_": 0.0, "threshold_backward": 0.0, "add": 1 / 3, "add_": 1 / 3}
    least = eager * [shares.get(name, 1.0) for name in eager.index]
    masks = eager.where(eager.index == "threshold_backward", 0.0) / 3
    return pd.DataFrame({"eager": eager, "least": least, "most": least + masks})


def step_cost(config: Config) -> Cost:
    """Return FLOP and bytes per training image, the sums over `operators`.

    The update's share falls as the batch grows, because weights are moved once per step.

    Raises:
        ValueError: PyTorch rejects the step.
    """
    table = operators(config)
    return Cost(float(table["gflop"].sum() * 1e9), float(table["megabytes"].sum() * 1e6))


def _moved_bytes(operator: Any, name: str, args: tuple, kwargs: dict, result: Any) -> int:
    """Return the bytes that a call reads and writes."""
    if name in ALLOCATIONS:
        return 0
    inputs = tensors_in((args, kwargs))
    storages = {tensor.untyped_storage() for tensor in inputs}
    outputs = [t for t in tensors_in(result) if t.untyped_storage() not in storages]
    in_place: list[torch.Tensor] = []
    if torch.Tag.inplace_view not in operator.tags:
        for place, argument in enumerate(arguments_of(operator)):
            if argument.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                in_place += tensors_in(value)
    if not (outputs or in_place):  # a view
        return 0
    twice = tensors_in([args[place] for place in READ_TWICE.get(name, ())])
    if name == "convolution_backward" and len(tensors_in(result[:2])) == 2:
        twice = [args[0]]
    return sum(map(_bytes, [*inputs, *twice, *outputs, *in_place]))


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor; an expanded one is read from its smaller storage."""
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


@dataclass(frozen=True)
class Ceilings:
    """The highest speeds that a machine reaches."""

    machine: str  # the beginning of its name in records
    flop_per_s: dict[str, float]  # by precision: fp32, tf32, bf16, fp16
    bytes_per_s: float  # read and written, together
    source: str  # "measured", or when they were recorded


def ceilings(device: torch.device) -> Ceilings:
    """Measure this machine's ceilings in fp32: a large matrix product, a copy of a large tensor.

    This takes a few seconds. The fastest call counts, because other programs can only slow a call
    down.
    """
    with number_format(device, "fp32"):
        return Ceilings(
            machine=Recorder(None).describe(device)["machine"],
            flop_per_s={"fp32": _compute_rate(device)},
            bytes_per_s=_copy_rate(device),
            source="measured",
        )


def recorded_ceilings(machine: str) -> Ceilings:
    """Return recorded ceilings of a machine: medians, which hardly vary on a GPU.

    Raises:
        ValueError: the machine has no recordings, or none of ceilings.
    """
    saved = load(machine)
    if "ceilings" not in saved:
        raise ValueError(f"no ceilings are recorded for {machine!r}: take those of nvidia-h100")
    rates = saved["ceilings"]
    return Ceilings(
        machine=saved["machine"].partition(",")[0],  # without its CPU
        flop_per_s={name: rates[name]["tflop_per_s"] * 1e12 for name in FORMATS},
        bytes_per_s=rates["copy_tb_per_s"] * 1e12,
        source=origin(saved),
    )


def points(runs: Iterable[Run] | pd.DataFrame, ceilings: Ceilings) -> pd.DataFrame:
    """Compare runs with a machine's ceilings, one row per run.

    Columns: rung, precision, batch_size, images_per_s, flop_per_byte, flop_per_s (reached),
    compute_images_per_s and memory_images_per_s (the two bounds), bound ("memory" or
    "compute", the lower one), share (reached, of the lower bound), machine. A share above 1
    means that other programs slowed down the measurement of the ceilings, or that a cache served
    bytes that count as moved.

    Args:
        runs: finished runs, or a table of records from `recorded`. Left out are runs that are not
            ok, of a different machine, in a precision without a ceiling, or with `compile` or
            `algebra`, which move fewer bytes than this counts.

    Raises:
        ValueError: no run is left.
    """
    records = rows_of(runs)
    table = [
        _point(row, ceilings)
        for row in records
        if row["status"] == "ok"
        and row.get("images_per_s")
        and row["machine"].startswith(ceilings.machine)
        and row["config"]["precision"] in ceilings.flop_per_s
        and not any(row["config"].get(name) for name in ("compile", "algebra"))
    ]
    if not table:
        places = {
            f"{row['config']['precision']} on {row.get('machine') or '?'} ({row['status']})"
            for row in records
        }
        raise ValueError(
            f"no run can be compared with the ceilings of {ceilings.machine} in "
            f"{', '.join(ceilings.flop_per_s)}; the runs are {'; '.join(sorted(places)) or 'none'}"
        )
    return pd.DataFrame(table)


def _point(row: dict[str, Any], ceilings: Ceilings) -> dict[str, Any]:
    config = from_dict(row["config"])
    cost = step_cost(config)
    compute = ceilings.flop_per_s[config.precision] / cost.flop
    memory = ceilings.bytes_per_s / cost.bytes
    return {
        "rung": config.rung,
        "precision": config.precision,
        "batch_size": config.batch_size,
        "images_per_s": row["images_per_s"],
        "flop_per_byte": cost.flop_per_byte,
        "flop_per_s": row["images_per_s"] * cost.flop,
        "compute_images_per_s": compute,
        "memory_images_per_s": memory,
        "bound": "memory" if memory < compute else "compute",
        "share": row["images_per_s"] / min(compute, memory),
        "machine": row["machine"],
    }


def _compute_rate(device: torch.device) -> float:
    """Return the FLOP/s of a matrix product; on a CPU, of a convolution if that is faster.

    There, PyTorch's products and convolutions are from two libraries, MKL and oneDNN. On
    processors that are not Intel's, MKL uses narrower registers, and training would be faster.
    """
    side = 256
    while (time := _fastest(_product(device, side), device)) < PRODUCT_S[device.type]:
        if side == LARGEST_SIDE:
            break
        side *= 2
    rate = 2 * side**3 / time
    if device.type == "cpu":
        images = torch.randn(8, 256, 28, 28).to(memory_format=torch.channels_last)
        weights = torch.randn(256, 256, 3, 3).to(memory_format=torch.channels_last)
        time = _fastest(lambda: torch.conv2d(images, weights, padding=1), device)
        rate = max(rate, 2 * 8 * 28**2 * 256**2 * 3**2 / time)
    return rate


def _product(device: torch.device, side: int) -> Callable[[], Any]:
    # A GPU clocks higher on zeros than on random numbers, which take long to create: repeat a tile.
    tiles = [torch.randn(256, 256, device=device) for _ in range(2)]
    a, b = (tile.repeat(side // 256, side // 256) for tile in tiles)
    return lambda: a @ b


def _copy_rate(device: torch.device) -> float:
    """Return the bytes/s of a copy, read and written."""
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), device)


def _fastest(call: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of the fastest of three to ten calls, fewer if they are long."""
    call()  # the first call chooses algorithms, starts threads and touches memory
    times: list[float] = []
    while len(times) < 3 or (len(times) < 10 and sum(times) < 0.5):
        times.append(seconds(call, device))
    return min(times)
