"""The table that research/refinement.py recorded on a GPU."""

from __future__ import annotations

import pandas as pd

from course.runs import recorded_table


def load_measurements(machine: str) -> pd.DataFrame:
    """Load the solutions by cuSOLVER that were timed on a machine, one per row.

    Columns: precision, matrix ("random", "easy", or "given" for one
    with a given condition number), size, condition, seconds, corrections (negative: refinement
    failed, and fp64 followed), error (backward), speedup (over fp64 on the same matrix), machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_table(machine, "refinement")
    table["condition"] = table["condition"].astype(float)
    same_matrix = ["matrix", "size", "condition"]
    fp64 = table[table["precision"] == "fp64"].set_index(same_matrix)
    fp64_seconds = table.join(fp64["seconds"].rename("fp64"), on=same_matrix)["fp64"]
    return table.assign(speedup=fp64_seconds / table["seconds"])
