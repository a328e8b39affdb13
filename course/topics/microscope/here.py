"""The microscope on this machine: a few products, with their kernels where there is a GPU."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import torch

from course.topics.microscope import looked, names
from course.topics.microscope.cases import Case, Product, row
from course.traces.tensor_cores.rules import classify
from course.training.precision import has_units
from course.training.recorder import Recorder

SIDE = {"cpu": 768, "cuda": 4096}


def products(device: torch.device) -> list[Product]:
    """A product in bf16 (fp32 where it is imitated), each of whose sides is longer once by 1."""
    name = "bf16" if has_units(device, "bf16") else "fp32"
    side = SIDE[device.type]
    base = Product(side, side, side, name)
    return [base, *(replace(base, **{which: side + 1}) for which in "mnk")]


def here(*cases: Case) -> pd.DataFrame:
    """Times of cases on this machine, and on a GPU their kernels. A second on a CPU.

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
        kernel = names.main_kernel(kernels)
        used = classify(kernel).verdict if kernel else ""
        seen = {"us": us, "tflop_per_s": case.flop / us / 1e6, "kernel": names.brief(kernel)}
        rows.append(row(case) | seen | {"tensor_cores": used, "machine": machine})
    return pd.DataFrame(rows)
