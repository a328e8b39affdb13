"""What research/inference.py measured on a GPU, as a table."""

from __future__ import annotations

import pandas as pd

from course.runs.recordings import recorded_table
from labs.lab_inference.latency import rates
from labs.lab_inference.latency_ladder import compared


def recorded(machine: str) -> pd.DataFrame:
    """What was measured on a machine, a row a way and a batch.

    Columns: part ("mode", "ladder", or "batch", whose "compiled" is a CUDA graph, too), way, batch,
    p50_s, p99_s, calls, images_per_s, peak_gib (allocated at most, above what the network takes;
    "mode"), error (of the scores, relative to fp32's largest; "ladder"), made_s (until it could
    answer, where it is compiled), faster (than fp32, with the same batch; "ladder"), machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = rates(recorded_table(machine, "inference"))
    return table.join(compared(table[table["part"] == "ladder"])["faster"])
