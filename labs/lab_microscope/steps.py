"""One convolution of ResNet-50 in six recorded steps of an H100: by name, by counter, by time."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from course.analysis.traces.tables import Trace, read
from course.analysis.traces.tensor_cores import counters
from course.analysis.traces.tensor_cores.rules import classify
from course.runs.recordings import load, origin, trace_folder, trace_path
from labs.lab_microscope.names import brief, main_kernel

MACHINE = "nvidia-h100"
# Setting, the format that convolutions computed in, the layout.
SETTINGS = (
    ("device", "fp32", "NCHW"),
    ("tf32", "tf32", "NCHW"),
    ("amp", "bf16", "NCHW"),
    ("amp_fp16", "fp16", "NCHW"),
    ("channels_last", "bf16", "NHWC"),
    ("channels_last_fp16", "fp16", "NHWC"),
)
# By name: the weights' shape, and the first convolution's or the first stage's images.
CONVOLUTIONS = {
    "first, 3 to 64 channels, 7 x 7": ((256, 3, 224, 224), (64, 3, 7, 7), 112),
    "64 to 64 channels, 3 x 3": ((256, 64, 56, 56), (64, 64, 3, 3), 56),
}


def in_steps(convolution: str) -> pd.DataFrame:
    """A convolution's forward pass in each recorded step, a row a setting.

    Columns: setting, format, layout, tensor_cores (by the name of the kernel that multiplies),
    generation, us and tflop_per_s of that kernel, others_us (kernels that rewrite or pad for it),
    tensor_active (share of cycles in which the Tensor Cores' pipe was busy, by ncu), name, kernel,
    machine. Of equal convolutions the first.

    Raises:
        ValueError: an unknown convolution; the message lists those there are.
    """
    if convolution not in CONVOLUTIONS:
        known = "; ".join(CONVOLUTIONS)
        raise ValueError(f"convolution={convolution!r}: choose one of {known}")
    saved = load(MACHINE)
    label = f"{saved['machine']} ({origin(saved)})"
    rows = [_row(*setting, *CONVOLUTIONS[convolution]) for setting in SETTINGS]
    return pd.DataFrame(rows).assign(machine=label)


def _row(
    setting: str,
    precision: str,
    layout: str,
    images: tuple[int, ...],
    weights: tuple[int, ...],
    px: int,
) -> dict[str, Any]:
    kernels = _forward(_trace(setting), images, weights)
    name = main_kernel(kernels["kernel"])
    multiplies = kernels["kernel"].eq(name)
    seconds = kernels.loc[multiplies, "duration_s"].sum()
    outputs, *each = weights
    flop = 2 * images[0] * px**2 * outputs * each[0] * each[1] * each[2]
    verdict = classify(name)
    return {
        "setting": setting,
        "format": precision,
        "layout": layout,
        "tensor_cores": verdict.verdict,
        "generation": verdict.generation,
        "us": 1e6 * seconds,
        "others_us": 1e6 * kernels.loc[~multiplies, "duration_s"].sum(),
        "tflop_per_s": flop / seconds / 1e12,
        "tensor_active": _counted(setting, name),
        "name": brief(name),
        "kernel": name,
    }


@cache
def _trace(setting: str) -> Trace:
    return read(trace_path(MACHINE, setting))


def _forward(trace: Trace, images: tuple[int, ...], weights: tuple[int, ...]) -> pd.DataFrame:
    """The kernels of the first forward pass of a convolution of these shapes."""
    kernels = trace.kernels
    shapes = kernels["input_shapes"].map(lambda given: tuple(given[:2]) if given else ())
    same = shapes.map((images, weights).__eq__)
    found = kernels[kernels["phase"].eq("forward") & same]
    products = found[found["kernel"].eq(main_kernel(found["kernel"]))]
    # Several such convolutions follow each other: the first ends before the second's first kernel.
    count = len(products)
    return found.sort_values("start_s").head(len(found) // count)


@cache
def _counters() -> pd.DataFrame:
    return counters.read_counters(trace_folder(MACHINE) / counters.COUNTERS_FILE)


def _counted(setting: str, kernel: str) -> float:
    table = _counters()
    found = table[table["setting"].eq(setting) & table["kernel"].eq(kernel)]
    return float(found["tensor_active"].max()) if len(found) else float("nan")
