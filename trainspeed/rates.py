"""The highest rates of a machine, of its products and of its memory: measured, or published."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainspeed import gpus
from trainspeed.resources import core_count
from trainspeed.timing import fastest, number_format

COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}  # several times as large as the last cache
LARGEST_SIDE = 8192  # of the matrices
# Seconds of the shortest product: long compared with its launch, and with the time for which
# another program may use the core.
PRODUCT_S = {"cpu": 0.05, "cuda": 0.01}
RATIO_S = 0.2  # for each product of `cpu_rates`, of which only the ratio counts


@dataclass(frozen=True)
class Ceilings:
    """The highest speeds that a machine reaches."""

    machine: str  # or the beginning of its name in records
    flop_per_s: dict[str, float]  # by format: fp32, tf32, bf16, fp16
    bytes_per_s: float  # read and written, together
    source: str  # "measured", "data sheet", or when they were recorded


def measure_ceilings(device: torch.device, formats: Sequence[str] = ("fp32",)) -> Ceilings:
    """Measure a machine's ceilings: by a large matrix product, and a copy of a large tensor.

    This takes a few seconds. The fastest call counts, because other programs can only slow a call
    down.

    Raises:
        ValueError: a format that the device does not have.
    """
    names = {"cpu": f"{core_count()} CPU cores"}
    if device.type == "cuda":
        names["cuda"] = torch.cuda.get_device_name(device)
    return Ceilings(
        machine=names.get(device.type, device.type),
        flop_per_s={name: measure_products(device, name) for name in formats},
        bytes_per_s=_copy_rate(device),
        source="measured",
    )


def published_ceilings(gpu: str) -> Ceilings:
    """Return the ceilings in a GPU's data sheet, without sparsity, which no program reaches.

    On an H100, a large product in bf16 reached 68 % of them, and a copy 90 %.

    Raises:
        ValueError: the GPU is not in the tables; the message names those that are.
    """
    row = gpus.find(gpu)
    if row is None:
        known = ", ".join([*gpus.summary().index, *gpus.cards().index])
        raise ValueError(f"gpu={gpu!r}: not in the tables. Choose one of {known}")
    return Ceilings(row.name, gpus.gpu_rates(gpu), 1e12 * row["tb_per_s"], "data sheet")


def rates_of(machine: dict) -> dict[str, float]:
    """Return the FLOP/s of products by format, as far as known.

    A GPU's are from its data sheet, without sparsity; a CPU's are measured, which takes seconds.
    """
    if machine["device"] == "cpu":
        return cpu_rates(machine["threads"])
    return gpus.gpu_rates(machine["device_name"])


def cpu_rates(threads: int) -> dict[str, float]:
    """Measure products in fp32 and bf16 in a process of its own; empty if that fails."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
    code += f"from trainspeed import rates; rates.print_cpu_rates({threads})"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
        )
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return {}


def print_cpu_rates(threads: int) -> None:
    """Print the rates of `cpu_rates`, as JSON."""
    torch.set_num_threads(threads)
    cpu = torch.device("cpu")
    print(json.dumps({name: measure_products(cpu, name, RATIO_S) for name in ("fp32", "bf16")}))


def measure_products(device: torch.device, precision: str, budget_s: float = 0.5) -> float:
    """Return the FLOP/s of a matrix product; on a CPU, of a convolution if that is faster.

    There, PyTorch's products and convolutions are from two libraries, MKL and oneDNN. On
    processors that are not Intel's, MKL uses narrower registers, and training would be faster.

    Args:
        budget_s: the seconds after which a measurement is not repeated.

    Raises:
        ValueError: a format that the device does not have.
    """
    with number_format(device, precision) as dtype:
        side, least_s = 256, PRODUCT_S.get(device.type, PRODUCT_S["cuda"])
        while (time := fastest(_product(device, dtype, side), device, budget_s)) < least_s:
            if side == LARGEST_SIDE:
                break
            side *= 2
        rate = 2 * side**3 / time
        if device.type == "cpu":
            images = torch.randn(8, 256, 28, 28).to(dtype, memory_format=torch.channels_last)
            weights = torch.randn(256, 256, 3, 3).to(dtype, memory_format=torch.channels_last)
            time = fastest(lambda: torch.conv2d(images, weights, padding=1), device, budget_s)
            rate = max(rate, 2 * 8 * 28**2 * 256**2 * 3**2 / time)
    return rate


def _product(device: torch.device, dtype: torch.dtype, side: int) -> Callable[[], Any]:
    # A GPU clocks higher on zeros than on random numbers, which take long to create: repeat a tile.
    tiles = [torch.randn(256, 256, device=device).to(dtype) for _ in range(2)]
    a, b = (tile.repeat(side // 256, side // 256) for tile in tiles)
    return lambda: a @ b


def _copy_rate(device: torch.device) -> float:
    """Return the bytes/s of a copy, read and written."""
    size = COPY_BYTES.get(device.type, COPY_BYTES["cpu"])
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / fastest(lambda: target.copy_(source), device)
