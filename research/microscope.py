"""The recorded part of lab_microscope: products and convolutions by time, kernel and counter.

    python -m research.microscope OUT.jsonl [--limit SECONDS]
    python -m research.microscope OUT.jsonl --index     # prints what the lab's index has of it

triton.testing.do_bench, median, cold cache; the largest rates without a pause; normal random
numbers; kernels as PyTorch's profiler names them. Two minutes on an H100. The lab measures the same
on a learner's GPU (labs.lab_microscope.on_gpu), but for the counters: they need Nsight Compute
(`ncu`) and a GPU that lets them be read.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from labs.lab_microscope import kernel_calls as looked
from labs.lab_microscope import measurements as measured
from labs.lab_microscope.cases import Case, Convolution, Product, row
from research.sweep import as_part, command, device, lines

NCU_S = 90  # ncu's longest
METRICS = {
    "duration_s": "gpu__time_duration.sum",
    "tensor_active": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
}


def measure(part: str) -> dict[str, Any]:
    """One part; its kernels are numbers of `names`."""
    names = measured.Names()
    parts = {"counters": counters} | measured.parts(device())
    return {"found": parts[part](names), "names": names.all}


def watched() -> list[Case]:
    """What ncu counts: each format's product, odd sides, and convolutions of even and odd."""
    sides = [(4096, 4096), (4096, 4097), (4097, 4096)]
    formats = ("bf16", "fp16", "tf32", "fp32", "fp64")
    found: list[Case] = [
        Product(4096, n, k, name) for name in formats for k, n in sides if name != "fp16" or n == k
    ]
    found += [Product(4096, 4096, 4100), Product(4096, 4096, 4096, "fp8")]
    found += [Product(4096, 4096, 4096, "int8")]
    shapes = [("bf16", "NHWC"), ("bf16", "NCHW"), ("tf32", "NHWC"), ("fp32", "NCHW")]
    found += [Convolution(c, c, *how) for how in shapes for c in (64, 65)]
    return [*found, Convolution(3, 64), Convolution(64, 64, groups=64)]


def run_watched() -> None:
    """Each case once, with a marker before and after: what ncu watches."""
    for case in watched():
        with looked.in_format(case.dtype, device()):
            call = case.call(device())
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            torch.cuda._sleep(1000)
            call()
            torch.cuda._sleep(1000)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def counters(names: measured.Names) -> list[dict[str, Any]]:
    """What ncu counts for each case, kernel by kernel.

    Raises:
        RuntimeError: there is no ncu, or it could read nothing; the message has its last lines.
    """
    from course.analysis.traces.tables import read_ncu

    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None:
        raise RuntimeError("no ncu on this machine")
    asked = [ncu, "--csv", "--page", "raw", "--print-units", "base"]
    asked += ["--metrics", ",".join(METRICS.values()), "--profile-from-start", "off"]
    asked += ["--cache-control", "none", "--clock-control", "none"]
    asked += [sys.executable, "-m", "research.microscope", "--watched"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=NCU_S)
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "ncu.csv").write_text(done.stdout)
        try:
            table = read_ncu(path).kernels
        except ValueError as error:
            raise RuntimeError(f"{error}\n{done.stdout[-800:]}{done.stderr[-800:]}") from None
    return by_case(watched(), table.to_dict("records"), names)


def by_case(
    cases: list[Case], kernels: list[dict[str, Any]], names: measured.Names
) -> list[dict[str, Any]]:
    """Rows of kernels, separated by the markers between the cases."""
    parts, inside = [], False
    for each in kernels:
        if looked.BETWEEN in each["kernel"]:
            inside = not inside
            parts += [[]] if inside else []
        elif inside:
            parts[-1].append(each)
    return [
        row(case)
        | {
            "kernels": names.numbers(tuple(each["kernel"] for each in part)),
            "us": [round(1e6 * each["duration_s"], 3) for each in part],
            "tensor_active": [round(each["tensor_active"], 4) for each in part],
        }
        for case, part in zip(cases, parts, strict=True)
    ]


def index(out: Path) -> dict[str, Any]:
    """The parts as `labs.lab_microscope.records` reads them, with one list of all names."""
    saved, names = as_part(lines(out)), measured.Names()
    for each in saved.pop("rows"):
        numbers = names.numbers(each["names"])
        saved[each["part"]] = _renumbered(each["found"], numbers)
    return saved | {"names": names.all}


def _renumbered(found: Any, numbers: list[int]) -> Any:
    """The part with its kernels' numbers replaced, however deep they are."""
    if isinstance(found, list):
        return [_renumbered(each, numbers) for each in found]
    if isinstance(found, int):
        return numbers[found]
    return found | {"kernels": _renumbered(found.get("kernels", []), numbers)}


if __name__ == "__main__":
    if "--watched" in sys.argv:
        run_watched()
    elif "--index" in sys.argv:
        print(json.dumps(index(Path(sys.argv[1]))))
    else:
        # The calls of C++ come last: a mistake there may leave the GPU's process of no use.
        names = ["counters", *measured.parts(device())]
        command(__doc__, [{"part": name} for name in names], measure)
