"""When do Tensor Cores run? Products and convolutions of many shapes, by time, name and counter.

    python -m benchmarks.microscope OUT.json [PART ...]

Two minutes on an H100. OUT.json is written anew after each part; what failed is in it,
and ends nothing. Counters need Nsight Compute (`ncu`) and a GPU that lets them be read; the calls
from C++ need a C++ compiler. `course.topics.microscope.record.seen` reads the result; where it is
kept in course/recorded/MACHINE/index.json as "microscope", `record.recorded` reads it there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

from course.topics.microscope import looked, measured
from course.topics.microscope.cases import Case, Convolution, Product, row
from course.training.recorder import Recorder

NCU_S = 90  # ncu's longest
METRICS = {
    "duration_s": "gpu__time_duration.sum",
    "tensor_active": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
}


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
    device = torch.device("cuda")
    for case in watched():
        with looked.in_format(case.dtype, device):
            call = case.call(device)
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            torch.cuda._sleep(1000)
            call()
            torch.cuda._sleep(1000)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def counted(names: measured.Names) -> list[dict[str, Any]]:
    """What ncu counts for each case, kernel by kernel.

    Raises:
        RuntimeError: there is no ncu, or it could read nothing; the message is its last lines.
    """
    from course.traces.tables import read_ncu

    there = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if there is None:
        raise RuntimeError("no ncu on this machine")
    command = [there, "--csv", "--page", "raw", "--print-units", "base", "--metrics"]
    command += [",".join(METRICS.values()), "--profile-from-start", "off"]
    command += ["--cache-control", "none", "--clock-control", "none", sys.executable]
    command += ["-m", "benchmarks.microscope", "--watched"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=NCU_S)
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
    """Rows of kernels, told apart by the markers between the cases."""
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


def parts(device: torch.device) -> dict[str, Callable[[measured.Names], Any]]:
    """All parts by name, in the order in which they are measured."""
    return {"counters": counted} | measured.parts(device)


def main(out: str, *wanted: str) -> None:
    """Measure the parts that are named, or all, and write what is there after each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names, failed, found = measured.Names(), {}, {}
    known = {
        "machine": Recorder(None).describe(device)["machine"],
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "command": measured.COMMAND,
    }
    for name, measure in parts(device).items():
        if wanted and name not in wanted:
            continue
        begin = time.monotonic()
        try:
            found[name] = measure(names)
        except Exception:  # whatever a driver or a tool may raise: the other parts go on
            failed[name] = traceback.format_exc()[-2000:]
        saved = {"microscope": known | found | {"names": names.all, "failed": failed}}
        Path(out).write_text(json.dumps(saved, separators=(",", ":")) + "\n")
        said = "failed" if name in failed else "done"
        print(f"{name}: {said} in {time.monotonic() - begin:.1f} s", flush=True)
        if name in failed:
            print(failed[name][-600:], flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--watched"]:
        run_watched()
    else:
        main(*sys.argv[1:])
