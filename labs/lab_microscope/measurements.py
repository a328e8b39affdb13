"""The measurements: products and convolutions of many shapes, on a GPU or on this machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import pandas as pd
import torch

from course.analysis.tensor_cores.rules import classify
from course.training.precision import has_units
from course.training.recorder import Recorder
from labs.lab_microscope import records, timing
from labs.lab_microscope.cases import Case, Convolution, Product, row
from labs.lab_microscope.kernel_names import main_kernel, short_name
from labs.lab_microscope.records import BASE, FORMATS

LONGER = (1, 2, 4, 8)
CHANNELS = (56, *range(60, 69), 72)
NEAR, FAR = range(4088, 4105), range(256, 8193, 256)
GRIDS = {  # n and k around BASE: one by one, in large steps, and along a line
    "near": [replace(BASE, k=k, n=n) for k in NEAR for n in NEAR],
    "far": [replace(BASE, k=2**power, n=n) for power in range(6, 14) for n in FAR],
    "line": [replace(BASE, n=n) for n in range(1024, 8193, 64)],
}
SIDES = (2048, 4096, 8192, 16384)
# Random trials for the largest rate of each format; formats with 0 only try square matrices.
TRIALS = {"bf16": 20, "fp16": 20, "fp8": 20, "tf32": 20, "int8": 0, "fp64": 0, "fp32": 0}
MAX_CALL_S = 0.04
TRIAL_S = 0.08
FINAL_S = 1.6  # a GPU reports its power as a mean over a second
LOCAL_SIDE = {"cpu": 384, "cuda": 4096}


class KernelNames(list):
    """A list of kernels' names without duplicates."""

    def numbers(self, kernels: Iterable[dict[str, Any]]) -> list[int]:
        """Return the position of each kernel's name; append new ones."""
        names = [kernel["kernel"] for kernel in kernels]
        self += [name for name in dict.fromkeys(names) if name not in self]
        return [self.index(name) for name in names]


def products() -> list[Product]:
    """Return a product in each format, with longer sides, and in each storage order."""
    longer = [
        replace(BASE, **{side: getattr(BASE, side) + extra}) for side in "knm" for extra in LONGER
    ]
    cases = [replace(case, dtype=name) for name in FORMATS for case in (BASE, *longer)]
    odd = [replace(BASE, **{side: getattr(BASE, side) + 1}) for side in "knm"]
    orders = ("NT", "TN", "TT")
    return cases + [replace(case, stored=order) for order in orders for case in (BASE, *odd)]


def convolutions() -> list[Convolution]:
    """Return convolutions by channels, format and layout, first layers, and a depthwise one."""
    shapes = [(count, count, 1) for count in CHANNELS]
    shapes += [(3, 64, 1), (4, 64, 1), (8, 64, 1), (64, 64, 64)]
    return [
        Convolution(inputs, outputs, name, layout, groups)
        for name in FORMATS[:4]
        for layout in ("NCHW", "NHWC")
        for inputs, outputs, groups in shapes
    ]


def measure_cases(
    cases: Iterable[Any], device: torch.device, names: KernelNames
) -> Iterator[dict[str, Any]]:
    """Yield each case with us, iqr_us, kernels and kernels_us; or with the error, "said"."""
    times: dict[Any, tuple[float, ...]] = {}
    for case in cases:
        try:
            times[case] = timing.time_case(case, device)
        except (RuntimeError, ValueError, OSError) as error:
            yield row(case) | {"said": str(error).splitlines()[0][:200]}
    for case, kernels in zip(times, timing.trace_kernels(times, device)):
        first, median, third = times[case]
        yield row(case) | {
            "us": round(1e6 * median, 3),
            "iqr_us": round(1e6 * (third - first), 3),
            "kernels": names.numbers(kernels),
            "kernels_us": [round(kernel["us"], 3) for kernel in kernels],
        }


def measure_grid(cases: list[Product], device: torch.device, names: KernelNames) -> dict[str, Any]:
    """Measure many products; return columns."""
    times = [timing.time_case(case, device, 10) for case in cases]
    sides = {side: [getattr(case, side) for case in cases] for side in "mnk"}
    return {
        "dtype": cases[0].dtype,
        **sides,
        "us": [round(1e6 * median, 3) for _, median, _ in times],
        "iqr_us": [round(1e6 * (third - first), 3) for first, _, third in times],
        "kernels": [names.numbers(part) for part in timing.trace_kernels(cases, device)],
    }


def search_largest_rate(name: str, device: torch.device, names: KernelNames) -> dict[str, Any]:
    """Search the fastest product in a format: on a coarse grid, then at random around the best.

    This is the search for the "maximum achievable matmul FLOPS" of S. Bekman's mamf-finder. But
    here the GPU does not rest between calls, so its clock is the sustained one.
    """
    trials: dict[Product, float] = {}

    def rate(case: Product) -> float:
        if case not in trials:
            trials[case] = timing.time_without_pause(case, device, TRIAL_S)["us"]
        return case.flop / trials[case]

    first = max((Product(side, side, side, name) for side in SIDES[:2]), key=rate)
    max_flop = 1e6 * MAX_CALL_S * rate(first)
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
    return {
        "dtype": name,
        "m": best.m,
        "n": best.n,
        "k": best.k,
        "tried": [[case.m, case.n, case.k, us] for case, us in trials.items()],
        "kernels": names.numbers(timing.trace_kernels([best], device)[0]),
        "cold_us": round(1e6 * timing.time_case(best, device)[1], 3),
        "normal": timing.time_without_pause(best, device, FINAL_S),
        "zeros": timing.time_without_pause(best, device, FINAL_S, zeros=True),
    }


def parts(device: torch.device) -> dict[str, Callable[[KernelNames], Any]]:
    """Return all measurements by name, the most important first."""
    measurements: dict[str, Callable[[KernelNames], Any]] = {
        "products": lambda names: [*measure_cases(products(), device, names)],
        "convolutions": lambda names: [*measure_cases(convolutions(), device, names)],
    }
    for name, cases in GRIDS.items():
        measurements[name] = lambda names, cases=cases: measure_grid(cases, device, names)
    for name in TRIALS:
        measurements[f"largest_{name}"] = lambda names, name=name: search_largest_rate(
            name, device, names
        )
    return measurements


def measure_gpu() -> records.Measurements | None:
    """Measure on this machine's GPU what was recorded on the H100; None without a GPU.

    It takes two minutes. A format that the GPU does not support is left out, with a message.

    Raises:
        RuntimeError: a map could not be measured.
    """
    if not torch.cuda.is_available():
        return None
    device, names = torch.device("cuda"), KernelNames()
    raw = {"machine": _machine(device), "date": date.today().isoformat()}
    raw |= {"torch": torch.__version__, "names": names}
    for name, measure in parts(device).items():
        try:
            raw[name] = measure(names)
        except (RuntimeError, ValueError) as error:
            if name in GRIDS:
                raise
            print(f"{name} is left out: {str(error).splitlines()[0][:100]}")
    return records.build_tables(raw)


def _machine(device: torch.device) -> str:
    return Recorder(None).describe(device)["machine"]


def _local_products(device: torch.device) -> list[Product]:
    """Return a product in bf16 (fp32 if bf16 is emulated), and one with each side longer by 1."""
    name = "bf16" if has_units(device, "bf16") else "fp32"
    side = LOCAL_SIDE[device.type]
    base = Product(side, side, side, name)
    return [base, *(replace(base, **{name: side + 1}) for name in "mnk")]


def map_this_machine(reach: int = 8) -> pd.DataFrame:
    """Time products on this machine with K and N up to `reach` around a size, in some seconds.

    On a CPU one core computes.

    Columns: m, n, k, us, dtype, tflop_per_s, kernel, tile, name, machine.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base, names = _local_products(device)[0], KernelNames()
    sides = range(base.k - reach, base.k + reach + 1)
    cases = [replace(base, k=k, n=n) for k in sides for n in sides]
    table = records.grid_table(measure_grid(cases, device, names), names)
    return table.assign(machine=_machine(device))


def time_cases(*cases: Case) -> pd.DataFrame:
    """Time cases on this machine: on a GPU with their kernels, on a CPU with one core.

    Columns: the cases' fields, us, tflop_per_s, kernel, tensor_cores ("" on a CPU), machine.

    Args:
        cases: `Product`s and `Convolution`s; by default a product, and ones with longer sides.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    cases = cases or _local_products(device)
    for case, kernels in zip(cases, timing.trace_kernels(cases, device)):
        us = 1e6 * timing.time_case(case, device)[1]
        kernel = main_kernel(part["kernel"] for part in kernels)
        result = {"us": us, "tflop_per_s": case.flop / us / 1e6, "kernel": short_name(kernel)}
        result["tensor_cores"] = classify(kernel).verdict if kernel else ""
        rows.append(row(case) | result | {"machine": _machine(device)})
    return pd.DataFrame(rows)
