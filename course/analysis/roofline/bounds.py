"""Roofline: what a step must compute and move, what a machine can, and which of the two holds.

A program that does `i` operations for each byte it moves cannot do more than
min(FLOP/s of the arithmetic units, i × bytes/s of the memory): Williams, Waterman and Patterson,
"Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from course.analysis.roofline.cost import step_cost
from course.analysis.roofline.timing import FORMATS, check_format, number_format, seconds
from course.analysis.run_rows import rows
from course.config import from_dict
from course.runs.recordings import load, origin
from course.runs.run import Run
from course.training.precision import has_units
from course.training.recorder import Recorder

COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}  # several times the last cache, or it would be measured
MOST_ROWS = 8192  # of the matrices
# For one product: long beside what starting it takes, and beside another program's turn on a core.
ENOUGH_S = {"cpu": 0.05, "cuda": 0.01}


@dataclass(frozen=True)
class Ceilings:
    """What a machine reaches at most: arithmetic in each precision, and its memory."""

    machine: str  # as records name it, or how that name begins
    flop_per_s: dict[str, float]  # by precision: fp32, tf32, bf16, fp16
    bytes_per_s: float  # read and written, together
    source: str  # "measured" here, or when they were recorded


def ceilings(device: torch.device, *precisions: str) -> Ceilings:
    """This machine's ceilings, measured: a large matrix product, and the copy of a large tensor.

    The product doubles its size until it takes ENOUGH_S, or has MOST_ROWS rows. A format that
    software emulates is computed in the units for fp32, so the ceiling is theirs: how far a run
    stays below it is the price of emulating. Of some calls the fastest counts, since other
    programs can only lower what is reached. A few seconds.

    Args:
        precisions: of "fp32", "tf32" (CUDA only), "bf16" and "fp16", those to measure; none
            means all that the device has.

    Raises:
        ValueError: an unknown precision, or one that the device does not have.
    """
    wanted = precisions or [name for name in FORMATS if name != "tf32" or device.type == "cuda"]
    for name in wanted:
        check_format(device, name)
    computed_in = {name: name if has_units(device, name) else "fp32" for name in wanted}
    rates = {name: _product_rate(device, name) for name in set(computed_in.values())}
    return Ceilings(
        machine=Recorder(None).describe(device)["machine"],
        flop_per_s={name: rates[computed_in[name]] for name in wanted},
        bytes_per_s=_copy_rate(device),
        source="measured",
    )


def recorded_ceilings(machine: str) -> Ceilings:
    """The ceilings as they were recorded on another machine (medians, which hardly vary on a GPU).

    Raises:
        ValueError: nothing was recorded for that machine, or no ceilings.
    """
    saved = load(machine)
    if "ceilings" not in saved:
        raise ValueError(f"no ceilings are recorded for {machine!r}: take those of nvidia-h100")
    found = saved["ceilings"]
    return Ceilings(
        machine=saved["machine"].partition(",")[0],  # without its CPU
        flop_per_s={name: found[name]["tflop_per_s"] * 1e12 for name in FORMATS},
        bytes_per_s=found["copy_tb_per_s"] * 1e12,
        source=origin(saved),
    )


def points(runs: Iterable[Run] | pd.DataFrame, ceilings: Ceilings) -> pd.DataFrame:
    """Where runs lie under a machine's ceilings, one row a run.

    Columns: rung, precision, batch_size, images_per_s, flop_per_byte, flop_per_s (reached),
    arithmetic_images_per_s and memory_images_per_s (the two bounds),
    nearer ("memory" or "arithmetic": the lower bound, which holds the run), share (reached, of
    the nearer bound), machine. A share above 1 says that the machine was busy with something
    else while its ceilings were measured, or that a cache served what is counted as moved.

    Args:
        runs: runs that are over, or a table of records as `recorded` returns. Runs that are not
            ok, of another machine, in a precision without a ceiling, or compiled or by the algebra
            (they move fewer bytes than are counted here) are left out.

    Raises:
        ValueError: no run is left.
    """
    given = rows(runs)
    kept = [
        row
        for row in given
        if row["status"] == "ok"
        and row.get("images_per_s")
        and row["machine"].startswith(ceilings.machine)
        and row["config"]["precision"] in ceilings.flop_per_s
        and not any(row["config"].get(name) for name in ("compile", "algebra"))
    ]
    if not kept:
        seen = sorted({_place(row) for row in given})
        raise ValueError(
            f"no run lies under these ceilings, which are those of {ceilings.machine} in "
            f"{', '.join(ceilings.flop_per_s)}; the runs are {'; '.join(seen) or 'none'}"
        )
    return pd.DataFrame([_point(row, ceilings) for row in kept])


def _place(row: dict[str, Any]) -> str:
    return f"{row['config']['precision']} on {row.get('machine') or '?'} ({row['status']})"


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
        "nearer": "memory" if memory < arithmetic else "arithmetic",
        "share": row["images_per_s"] / min(arithmetic, memory),
        "machine": row["machine"],
    }


def _product_rate(device: torch.device, precision: str) -> float:
    """FLOP/s of a matrix product; on a CPU, of a convolution, where that is faster.

    PyTorch's products and convolutions come from two libraries there, MKL and oneDNN. On
    processors that are not Intel's MKL uses narrower registers, and training would beat it.
    """
    side = 256
    with number_format(device, precision) as dtype:
        while (time := _fastest(_product(device, dtype, side), device)) < ENOUGH_S[device.type]:
            if side == MOST_ROWS:
                break
            side *= 2
        rate = 2 * side**3 / time
        if device.type == "cpu":
            rate = max(rate, 2 * 8 * 28**2 * 256**2 * 3**2 / _fastest(_convolution(dtype), device))
    return rate


def _product(device: torch.device, dtype: torch.dtype, side: int) -> Callable[[], Any]:
    # Random numbers, for zeros would let a GPU clock higher; one tile of them, as they take long.
    a, b = (
        torch.randn(256, 256, device=device, dtype=dtype).repeat(side // 256, side // 256)
        for _ in range(2)
    )
    return lambda: a @ b


def _convolution(dtype: torch.dtype) -> Callable[[], Any]:
    images, weights = torch.randn(8, 256, 28, 28), torch.randn(256, 256, 3, 3)
    images, weights = (
        each.to(dtype, memory_format=torch.channels_last) for each in (images, weights)
    )
    return lambda: torch.conv2d(images, weights, padding=1)


def _copy_rate(device: torch.device) -> float:
    """Bytes/s of a copy, read and written."""
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), device)


def _fastest(call: Callable[[], Any], device: torch.device) -> float:
    """Seconds of the fastest of three to ten calls, fewer where they are long."""
    call()  # the first one chooses algorithms, starts threads, touches memory
    times: list[float] = []
    while len(times) < 3 or (len(times) < 10 and sum(times) < 0.5):
        times.append(seconds(call, device))
    return min(times)
