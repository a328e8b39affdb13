"""The measurements: products and convolutions of many shapes, on a GPU or on this machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from course.training import Recorder, has_units
from electives.microscope import records, timing
from electives.microscope.cases import Case, Product, row
from electives.microscope.kernel_names import main_kernel

SIDES = (2048, 4096, 8192, 16384)
# Random trials for the largest rate of each format; formats with 0 only try square matrices.
TRIALS = {"bf16": 20, "fp16": 20, "fp8": 20, "tf32": 20, "int8": 0, "fp64": 0, "fp32": 0}
MAX_CALL_S = 0.04
TRIAL_S = 0.08
FINAL_S = 1.6  # a GPU reports its power as a mean over a second
LOCAL_SIDE = {"cpu": 384, "cuda": 4096}


def measure_cases(
    cases: Sequence[Case], device: torch.device, rep_ms: float = 20
) -> list[dict[str, Any]]:
    """Return each case's fields, its time in us, tflop_per_s, and main kernel ("" on a CPU)."""
    rows = []
    for case, kernels in zip(cases, timing.trace_kernels(cases, device)):
        us = 1e6 * timing.time_case(case, device, rep_ms)
        speed = {"us": us, "tflop_per_s": case.flop / us / 1e6}
        rows.append(row(case) | speed | {"kernel": main_kernel(part["kernel"] for part in kernels)})
    return rows


def search_largest_rate(name: str, device: torch.device) -> dict[str, Any]:
    """Search the fastest product in a format: on a coarse grid, then at random around the best.

    This is the search for the "maximum achievable matmul FLOPS" of S. Bekman's mamf-finder. But
    here the GPU does not rest between calls, so its clock is the sustained one.
    """
    trials: dict[Product, float] = {}

    def rate(case: Product) -> float:
        if case not in trials:
            trials[case] = timing.time_without_pause(case, device, TRIAL_S)["tflop_per_s"]
        return trials[case]

    first = max((Product(side, side, side, name) for side in SIDES[:2]), key=rate)
    max_flop = 1e12 * MAX_CALL_S * rate(first)
    coarse = [Product(m, n, k, name) for m in SIDES for n in SIDES for k in SIDES]
    if not TRIALS[name]:
        coarse = [case for case in coarse if case.m == case.n == case.k]
    best = max((case for case in coarse if case.flop <= max_flop), key=rate)
    generator, step = random.Random(0), SIDES[0] // 16
    for _ in range(TRIALS[name]):
        changes = {
            side: max(step, getattr(best, side) + step * generator.randint(-12, 12))
            for side in "mnk"
        }
        if (case := replace(best, **changes)).flop <= max_flop:
            best = max(best, case, key=rate)
    zeros = timing.time_without_pause(best, device, FINAL_S, zeros=True)
    return {
        **row(best),
        "tried": len(trials),
        **timing.time_without_pause(best, device, FINAL_S),
        **{f"zeros_{key}": value for key, value in zeros.items()},
    }


def search_largest_rates(device: torch.device) -> list[dict[str, Any]]:
    """Search the fastest product in each format; leave out one that fails, with a message."""
    rows = []
    for name in TRIALS:
        try:
            rows.append(search_largest_rate(name, device))
        except (RuntimeError, ValueError) as error:
            first_line = str(error).partition("\n")[0]
            print(f"{name} is left out: {first_line[:100]}")
    return rows


def measure_gpu() -> pd.DataFrame | None:
    """Search the largest rates of this machine's GPU, as on the H100; None without a GPU.

    It takes about a minute. A format that the GPU does not support is left out, with a message.
    """
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda")
    return records.largest_table(search_largest_rates(device), _machine(device))


def _machine(device: torch.device) -> str:
    return Recorder(None).describe(device)["machine"]


def _local_products(device: torch.device) -> list[Product]:
    """Return a product in bf16 (fp32 if bf16 is emulated), and one with each side longer by 1."""
    name = "bf16" if has_units(device, "bf16") else "fp32"
    side = LOCAL_SIDE[device.type]
    base = Product(side, side, side, name)
    return [base, *(replace(base, **{name: side + 1}) for name in "mnk")]


def time_cases(*cases: Case) -> pd.DataFrame:
    """Time cases on this machine: on a GPU with their kernels, on a CPU with one core.

    Columns: the cases' fields, us, tflop_per_s, machine; on a GPU also name and tile of the kernel,
    and tensor_cores.

    Args:
        cases: `Product`s and `Convolution`s; by default a product, and ones with longer sides.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    table = records.case_table(measure_cases(cases or _local_products(device), device))
    on_gpu_only = ["name", "tile", "tensor_cores"] if device.type == "cpu" else []
    return table.drop(columns=["kernel", *on_gpu_only]).assign(machine=_machine(device))
