"""Convolutions that were recorded on GPUs: speed over channels."""

from __future__ import annotations

import pandas as pd

from course.runs import recordings

RECORDED_NAMES = {"tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


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
