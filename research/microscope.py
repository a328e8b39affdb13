"""The recorded part of microscope: products and convolutions by time, kernel and counter.

    python -m research.microscope OUT.jsonl [--limit SECONDS]
    python -m research.microscope OUT.jsonl --index     # prints what the lab's index has of it

triton.testing.do_bench, median, cold cache; the largest rates without a pause; normal random
numbers; kernels as PyTorch's profiler names them. Two minutes on an H100. The counters need Nsight
Compute (`ncu`) and a GPU that lets them be read.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from electives.microscope import measurements, timing
from electives.microscope.cases import Case, Convolution, Product, row, tf32_switches
from electives.microscope.records import BASE, FORMATS
from research import cuda_libraries
from research.cuda_libraries import LAYOUTS
from research.sweep import as_part, command, device, lines

NEAR, FAR = range(4088, 4105), range(256, 8193, 256)
GRIDS = {  # n and k around BASE: one by one, and in large steps
    "near": [replace(BASE, k=k, n=n) for k in NEAR for n in NEAR],
    "far": [replace(BASE, k=2**power, n=n) for power in range(6, 14) for n in FAR],
}
NCU_S = 90
METRICS = {
    "duration_s": "gpu__time_duration.sum",
    "tensor_active": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
}


def products() -> list[Product]:
    """Return a product in each format, and with each side longer by 1."""
    longer = [replace(BASE, **{side: getattr(BASE, side) + 1}) for side in "knm"]
    return [replace(case, dtype=name) for name in FORMATS for case in (BASE, *longer)]


def depthwise() -> list[Convolution]:
    """Return convolutions with one group and with one per channel, in both layouts."""
    kinds = [(name, layout) for name in ("bf16", "fp16", "tf32", "fp32") for layout in LAYOUTS]
    return [
        Convolution(count, count, *kind, groups=groups)
        for kind in kinds
        for count in (64, 256)
        for groups in (1, count)
    ]


def accepts(case: Case, device: torch.device) -> bool:
    """Return whether PyTorch computes a case there: fp8 and int8 need even sides, and units."""
    try:
        with tf32_switches(case.dtype, device):
            case.call(device)()
    except (RuntimeError, ValueError):
        return False
    return True


def parts() -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Return all measurements; those in C++ come last, because a mistake may break the process."""
    gpu = device()
    return {
        "counters": count_cycles,
        "products": lambda: measurements.measure_cases(
            [case for case in products() if accepts(case, gpu)], gpu
        ),
        **{
            name: lambda cases=cases: measurements.measure_cases(cases, gpu, 10)
            for name, cases in GRIDS.items()
        },
        "depthwise": lambda: measurements.measure_cases(depthwise(), gpu, 10),
        "largest": lambda: measurements.search_largest_rates(gpu),
        "cublas": lambda: measurements.measure_cases(cuda_libraries.products(), gpu),
        "cudnn": lambda: measurements.measure_cases(cuda_libraries.convolutions(), gpu),
    }


def measure(part: str) -> list[dict[str, Any]]:
    """Measure one part."""
    return parts()[part]()


def counted_cases() -> list[Case]:
    """Return products by format and odd sides, and convolutions, for ncu to count."""
    sides = [(4096, 4096), (4096, 4097), (4097, 4096)]
    formats = ("bf16", "fp16", "tf32", "fp32", "fp64")
    cases: list[Case] = [
        Product(4096, n, k, name) for name in formats for k, n in sides if name != "fp16" or n == k
    ]
    cases += [Product(4096, 4096, 4100), Product(4096, 4096, 4096, "fp8")]
    cases += [Product(4096, 4096, 4096, "int8")]
    kinds = [("bf16", "NHWC"), ("bf16", "NCHW"), ("tf32", "NHWC"), ("fp32", "NCHW")]
    cases += [Convolution(count, count, *kind) for kind in kinds for count in (64, 65)]
    return [*cases, Convolution(3, 64)]


def run_counted_cases() -> None:
    """Run each case once between two markers, under ncu."""
    for case in counted_cases():
        with tf32_switches(case.dtype, device()):
            call = case.call(device())
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            torch.cuda._sleep(1000)
            call()
            torch.cuda._sleep(1000)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def count_cycles() -> list[dict[str, Any]]:
    """Count each case's cycles with ncu, kernel by kernel.

    Raises:
        RuntimeError: ncu is missing, or could read nothing; the message has its last lines.
    """
    from labs.profiler.nsight import read_ncu

    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None:
        raise RuntimeError("ncu is missing: install NVIDIA's Nsight Compute")
    arguments = [ncu, "--csv", "--print-units", "base"]
    arguments += ["--metrics", ",".join(METRICS.values()), "--profile-from-start", "off"]
    arguments += ["--cache-control", "none", "--clock-control", "none"]
    arguments += [sys.executable, "-m", "research.microscope", "--counted-cases"]
    process = subprocess.run(arguments, capture_output=True, text=True, timeout=NCU_S)
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "ncu.csv").write_text(process.stdout)
        try:
            table = read_ncu(path).kernels
        except ValueError as error:
            log = process.stdout[-800:] + process.stderr[-800:]
            raise RuntimeError(f"{error}\n{log}") from None
    kernels = timing.split_at_markers(table.to_dict("records"))
    return [
        row(case)
        | {"kernel": kernel["kernel"], "us": round(1e6 * kernel["duration_s"], 3)}
        | {"tensor_active": round(kernel["tensor_active"], 4)}
        for case, part in zip(counted_cases(), kernels, strict=True)
        for kernel in part
    ]


def index(out: Path) -> dict[str, Any]:
    """Return the parts as `electives.microscope.records` reads them, and maps as columns."""
    saved = as_part(lines(out))
    for name, rows in pd.DataFrame(saved.pop("rows")).groupby("part", sort=False):
        rows = rows.drop(columns="part").dropna(axis=1, how="all")
        columns = rows.to_dict("list")
        if name in GRIDS:
            saved[name] = {key: v[0] if len({*v}) == 1 else v for key, v in columns.items()}
        else:
            saved[name] = rows.to_dict("records")
    return saved


if __name__ == "__main__":
    if "--counted-cases" in sys.argv:
        run_counted_cases()
    elif "--index" in sys.argv:
        print(json.dumps(index(Path(sys.argv[1]))))
    else:
        command(__doc__, [{"part": name} for name in parts()], measure)
