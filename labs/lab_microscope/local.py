"""The microscope on this machine: a few products, with their kernels where there is a GPU."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pandas as pd
import torch

from course.analysis.traces.tensor_cores.rules import classify
from course.training.precision import has_units
from course.training.recorder import Recorder
from labs.lab_microscope import (
    kernel_calls as looked,
)
from labs.lab_microscope import (
    measurements as measured,
)
from labs.lab_microscope import (
    names,
)
from labs.lab_microscope import (
    records as record,
)
from labs.lab_microscope.cases import Case, Product, row

SIDE = {"cpu": 384, "cuda": 4096}


def products(device: torch.device) -> list[Product]:
    """A product in bf16 (fp32 where it is emulated), each of whose sides is longer once by 1."""
    name = "bf16" if has_units(device, "bf16") else "fp32"
    side = SIDE[device.type]
    base = Product(side, side, side, name)
    return [base, *(replace(base, **{which: side + 1}) for which in "mnk")]


def near(reach: int = 8) -> pd.DataFrame:
    """A map of this machine: K and N go so far to both sides of a size, each by itself.

    On a CPU one core computes.

    Columns: m, n, k, us, dtype, tflop_per_s, kernel, tile, name, machine. Some seconds.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base, *_ = products(device)
    ways = range(base.k - reach, base.k + reach + 1)
    cases = [replace(base, k=k, n=n) for k in ways for n in ways]
    kept = measured.Names()
    table = record.grid(measured.grid(cases, device, kept), kept.all)
    return table.assign(machine=Recorder(None).describe(device)["machine"])


def on_gpu() -> record.Seen | None:
    """All that the lab's benchmark measures, on this machine's GPU in two minutes; or None.

    A format that the GPU has not is left out of the largest rates, and a line says so.

    Raises:
        RuntimeError: a map could not be measured.
    """
    if not torch.cuda.is_available():
        return None
    device, kept = torch.device("cuda"), measured.Names()
    known = {
        "machine": Recorder(None).describe(device)["machine"],
        "date": date.today().isoformat(),
        "torch": torch.__version__,
    }
    found = {}
    for name, part in measured.parts(device).items():
        try:
            found[name] = part(kept)
        except (RuntimeError, ValueError) as error:
            if name in record.GRIDS:
                raise
            print(f"{name} is left out: {str(error).splitlines()[0][:100]}")
    return record.seen(known | found | {"names": kept.all})


def here(*cases: Case) -> pd.DataFrame:
    """Times of cases on this machine: on a GPU with their kernels, on a CPU of one core.

    Columns: the cases' own, us, tflop_per_s, kernel, tensor_cores ("" on a CPU, whose units are
    others), machine.

    Args:
        cases: `Product`s and `Convolution`s; without any, one product and longer ones.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    asked = list(cases) or products(device)
    machine = Recorder(None).describe(device)["machine"]
    rows = []
    for case, kernels in zip(asked, looked.kernels(asked, device)):
        us = 1e6 * looked.timed(case, device)
        kernel = names.main_kernel(name for name, _ in kernels)
        used = classify(kernel).verdict if kernel else ""
        seen = {"us": us, "tflop_per_s": case.flop / us / 1e6, "kernel": names.brief(kernel)}
        rows.append(row(case) | seen | {"tensor_cores": used, "machine": machine})
    return pd.DataFrame(rows)
