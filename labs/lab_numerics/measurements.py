"""What research/refinement.py measured on a GPU, as a table."""

from __future__ import annotations

import pandas as pd

from course.runs.recordings import recorded_table


def recorded(machine: str) -> pd.DataFrame:
    """What was measured on a machine, a row a solution.

    Columns: by ("cuSOLVER" or "ours"), precision, matrix ("random", "easy", or "given" of its
    condition), size, condition, seconds, tflop_per_s (of 2/3 n³ operations), corrections
    (negative: it gave up, and solved in fp64), error (backward), speedup (over cuSOLVER in fp64,
    of the same matrix), machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_table(machine, "refinement")
    table["condition"] = table["condition"].astype(float)
    table["tflop_per_s"] = 2 / 3 * table["size"] ** 3 / table["seconds"] / 1e12
    of = ["matrix", "size", "condition"]
    whole = table[(table["precision"] == "fp64") & (table["by"] == "cuSOLVER")]
    whole = whole.set_index(of)["seconds"].rename("fp64_s")
    table = table.join(whole, on=of)
    table["speedup"] = table["fp64_s"] / table["seconds"]
    return table.drop(columns="fp64_s")
