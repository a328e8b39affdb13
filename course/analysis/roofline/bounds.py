"""The roofline model: the highest speeds that a machine reaches, and how close runs come to them.

A program that does `i` FLOP per byte cannot do more than min(FLOP/s of the compute units,
i × bytes/s of the memory): Williams, Waterman and Patterson, "Roofline: an insightful visual
performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from course.analysis.roofline.cost import step_cost
from course.analysis.roofline.timing import FORMATS, check_format, number_format, seconds
from course.config import from_dict
from course.runs.recordings import load, origin
from course.runs.run import Run, rows_of
from course.training.precision import has_units
from course.training.recorder import Recorder

COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}  # several times as large as the last cache
LARGEST_SIDE = 8192  # of the matrices
# Seconds of the shortest product: long compared with its launch, and with the time for which
# another program may use the core.
PRODUCT_S = {"cpu": 0.05, "cuda": 0.01}


@dataclass(frozen=True)
class Ceilings:
    """The highest speeds that a machine reaches."""

    machine: str  # the beginning of its name in records
    flop_per_s: dict[str, float]  # by precision: fp32, tf32, bf16, fp16
    bytes_per_s: float  # read and written, together
    source: str  # "measured", or when they were recorded


def ceilings(device: torch.device, *precisions: str) -> Ceilings:
    """Measure this machine's ceilings with a large matrix product and a copy of a large tensor.

    This takes a few seconds. The fastest call counts, because other programs can only slow a call
    down. A format without hardware has the ceiling of fp32, whose units emulate it, so the distance
    of a run from the ceiling shows the price of emulation.

    Args:
        precisions: "fp32", "tf32" (only CUDA), "bf16" and "fp16"; none: all of the device.

    Raises:
        ValueError: an unknown precision, or one that the device does not have.
    """
    precisions = precisions or tuple(p for p in FORMATS if p != "tf32" or device.type == "cuda")
    for precision in precisions:
        check_format(device, precision)
    units = {p: p if has_units(device, p) else "fp32" for p in precisions}
    rates = {precision: _compute_rate(device, precision) for precision in set(units.values())}
    return Ceilings(
        machine=Recorder(None).describe(device)["machine"],
        flop_per_s={precision: rates[units[precision]] for precision in precisions},
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
    arithmetic_images_per_s and memory_images_per_s (the two bounds), bound ("memory" or
    "arithmetic", the lower one), share (reached, of the lower bound), machine. A share above 1
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
    arithmetic = ceilings.flop_per_s[config.precision] / cost.flop
    memory = ceilings.bytes_per_s / cost.bytes
    return {
        "rung": config.rung,
        "precision": config.precision,
        "batch_size": config.batch_size,
        "images_per_s": row["images_per_s"],
        "flop_per_byte": cost.flop_per_byte,
        "flop_per_s": row["images_per_s"] * cost.flop,
        "arithmetic_images_per_s": arithmetic,
        "memory_images_per_s": memory,
        "bound": "memory" if memory < arithmetic else "arithmetic",
        "share": row["images_per_s"] / min(arithmetic, memory),
        "machine": row["machine"],
    }


def _compute_rate(device: torch.device, precision: str) -> float:
    """Return the FLOP/s of a matrix product; on a CPU, of a convolution if that is faster.

    There, PyTorch's products and convolutions are from two libraries, MKL and oneDNN. On
    processors that are not Intel's, MKL uses narrower registers, and training would be faster.
    """
    side = 256
    with number_format(device, precision) as dtype:
        while (time := _fastest(_product(device, dtype, side), device)) < PRODUCT_S[device.type]:
            if side == LARGEST_SIDE:
                break
            side *= 2
        rate = 2 * side**3 / time
        if device.type == "cpu":
            images = torch.randn(8, 256, 28, 28).to(dtype, memory_format=torch.channels_last)
            weights = torch.randn(256, 256, 3, 3).to(dtype, memory_format=torch.channels_last)
            time = _fastest(lambda: torch.conv2d(images, weights, padding=1), device)
            rate = max(rate, 2 * 8 * 28**2 * 256**2 * 3**2 / time)
    return rate


def _product(device: torch.device, dtype: torch.dtype, side: int) -> Callable[[], Any]:
    # A GPU clocks higher on zeros than on random numbers, which take long to create: repeat a tile.
    tiles = [torch.randn(256, 256, device=device, dtype=dtype) for _ in range(2)]
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
