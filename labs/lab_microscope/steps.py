"""One convolution of ResNet-50 in six recorded steps of an H100: by name, by counter, by time."""

from __future__ import annotations

from functools import cache
from math import prod

import pandas as pd

from course.analysis.tensor_cores import counters
from course.analysis.tensor_cores.rules import classify
from course.analysis.traces.tables import Trace, read
from course.runs.recordings import load, origin, trace_folder, trace_path
from labs.lab_microscope.kernel_names import main_kernel, short_name

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
# By name: shape of the images, shape of the weights, and pixels per side of the output.
CONVOLUTIONS = {
    "first, 3 to 64 channels, 7 x 7": ((256, 3, 224, 224), (64, 3, 7, 7), 112),
    "64 to 64 channels, 3 x 3": ((256, 64, 56, 56), (64, 64, 3, 3), 56),
}


def convolution_in_steps(convolution: str) -> pd.DataFrame:
    """Return the forward pass of one of CONVOLUTIONS in each recorded step.

    Columns: format, layout, tensor_cores (from the main kernel's name), us and
    tflop_per_s of that kernel, others_us (kernels that rewrite or pad for it), tensor_active
    (share of cycles with busy Tensor Cores, from ncu), name, machine.

    Raises:
        ValueError: an unknown convolution.
    """
    if convolution not in CONVOLUTIONS:
        raise ValueError(f"convolution={convolution!r}: choose one of {'; '.join(CONVOLUTIONS)}")
    images, weights, px = CONVOLUTIONS[convolution]
    counts = counters.read_counters(trace_folder(MACHINE) / counters.COUNTERS_FILE)
    rows = []
    for setting, precision, layout in SETTINGS:
        kernels = _forward_kernels(_read_trace(setting), images, weights)
        kernel = main_kernel(kernels["kernel"])
        is_main = kernels["kernel"].eq(kernel)
        seconds = kernels.loc[is_main, "duration_s"].sum()
        is_counted = counts["setting"].eq(setting) & counts["kernel"].eq(kernel)
        rows.append(
            {
                "format": precision,
                "layout": layout,
                "tensor_cores": classify(kernel).verdict,
                "us": 1e6 * seconds,
                "others_us": 1e6 * kernels.loc[~is_main, "duration_s"].sum(),
                "tflop_per_s": 2e-12 * images[0] * px**2 * prod(weights) / seconds,
                "tensor_active": counts.loc[is_counted, "tensor_active"].max(),
                "name": short_name(kernel),
            }
        )
    machine = load(MACHINE)
    return pd.DataFrame(rows).assign(machine=f"{machine['machine']} ({origin(machine)})")


@cache
def _read_trace(setting: str) -> Trace:
    return read(trace_path(MACHINE, setting))


def _forward_kernels(
    trace: Trace, images: tuple[int, ...], weights: tuple[int, ...]
) -> pd.DataFrame:
    """Return the kernels of the first forward convolution with these shapes."""
    kernels = trace.kernels
    shapes = kernels["input_shapes"].map(lambda shapes: tuple(shapes[:2]) if shapes else ())
    same = shapes.map((images, weights).__eq__)
    same_convolutions = kernels[kernels["phase"].eq("forward") & same]
    # Equal convolutions follow each other, with the same number of kernels.
    count = same_convolutions["kernel"].eq(main_kernel(same_convolutions["kernel"])).sum()
    return same_convolutions.sort_values("start_s").head(len(same_convolutions) // count)
