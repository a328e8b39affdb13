"""Convolutions that were recorded on GPUs: speed over channels, and the algorithms of cuDNN."""

from __future__ import annotations

import pandas as pd

from course import trace_path
from course.analysis import read_trace
from course.runs import recordings
from trainspeed import traces

RECORDED_NAMES = {"tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# By words in a kernel's name; the first that fits counts. FFT multiplies complex numbers (cf32).
ALGORITHMS = {
    "layout conversions": traces.LAYOUT,
    "Winograd": "winograd",
    "FFT": "fft|cf32|flip_filter",
    "implicit matrix product": "implicit|[fdw]grad|fprop|convolve|Convolution",
    "matrix product": "gemm|nvjet",
    "other": "",
}


def recorded_convolution(machine: str, precision: str = "bf16") -> pd.DataFrame:
    """Return the recorded times of a 3×3 convolution's forward pass, by its channels in and out.

    PyTorch's convolutions use TF32 by default, and the recorded "float32" is that fast.

    Columns: channels, layout (NCHW | NHWC), ms, tflop_per_s; `attrs["title"]` describes the case.

    Args:
        precision: tf32, bf16 or fp16.

    Raises:
        ValueError: nothing is recorded for this machine or precision.
    """
    saved = recordings.load(machine)
    rows = [
        row
        for row in saved.get("convolution", {}).get("rows", [])
        if row["precision"] == RECORDED_NAMES.get(precision)
    ]
    if not rows:
        raise ValueError(
            f"no convolution in {precision!r} is recorded for {machine!r}: nvidia-h100 has "
            f"{', '.join(RECORDED_NAMES)}"
        )
    table = pd.DataFrame(rows)
    table["ms"] = table["median_s"] * 1e3
    table = table[["channels", "layout", "ms", "tflop_per_s"]]
    table.attrs["title"] = (
        f"{saved['machine'].split(', with')[0]} ({recordings.origin(saved)})\n"
        f"3×3 convolution, forward, {precision}, 64 images of 56 × 56 pixels"
    )
    return table


def time_by_algorithm(machine: str, *rungs: str) -> pd.DataFrame:
    """Return the GPU milliseconds of recorded convolutions by algorithm, with a column per rung.

    The names of the kernels show the algorithm. A 1×1 convolution is a matrix product; *implicit*
    products compute larger windows without storing the matrix of all windows.
    """
    columns = {}
    for rung in rungs:
        kernels = read_trace(trace_path(machine, rung)).kernels
        kernels = kernels[kernels["operator"].str.contains("conv")]
        algorithm = pd.Series("", index=kernels.index)
        for name, words in reversed(ALGORITHMS.items()):
            algorithm[kernels["kernel"].str.contains(words)] = name
        columns[rung] = 1e3 * kernels["duration_s"].groupby(algorithm).sum()
    return pd.DataFrame(columns).reindex(ALGORITHMS).fillna(0.0).rename_axis("ms of GPU time")
