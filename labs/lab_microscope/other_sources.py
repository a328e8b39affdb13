"""What other labs recorded of convolutions, and what data sheets say, beside the lab's rules."""

from __future__ import annotations

import re

import pandas as pd

from course.analysis import gpus
from labs.day1_3_channels_last.convolution import recorded_convolution
from labs.lab_microscope.solutions import widest_load

MACHINE = "nvidia-h100"
BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp64": 8, "fp8": 1, "int8": 1}
# TFLOP/s as data sheets print them, by format; int8 in the same column as fp8 on Hopper.
COLUMN = {"bf16": "fp16", "int8": "fp8"}


def channels(precision: str, layout: str = "NHWC", machine: str = MACHINE) -> pd.DataFrame:
    """A recorded convolution over its channels, with the widest load that they allow.

    Columns: channels, load (bytes; of a pixel's channels, which lie side by side in NHWC), ms,
    tflop_per_s, precision, layout, machine.
    """
    table = recorded_convolution(machine, precision)
    table = table[table["layout"] == layout].reset_index(drop=True)
    loads = [widest_load(count, BYTES[precision]) for count in table["channels"]]
    kept = ["ms", "tflop_per_s", "precision", "layout", "machine"]
    return table[["channels"]].assign(load=loads).join(table[kept])


def published(machine: str) -> dict[str, float]:
    """The data sheet's row of the GPU that a machine's name has in it; nothing where none is."""
    table = gpus.summary()
    for name in table.index:
        if re.search(rf"\b{name}\b", machine):
            return table.loc[name].to_dict()
    return {}
