"""Products and training steps in bf16 and fp8, which research/low_precision.py recorded."""

from __future__ import annotations

import pandas as pd

from course.runs import recorded_table

METHODS = ("fp8", "fp8 and conversion")


def load_products(machine: str) -> pd.DataFrame:
    """Load how many times as fast as in bf16 each product was in fp8, one shape per row.

    Columns: "fp8" (both matrices are in fp8 already), "fp8 and conversion" (of the activations),
    k and n (inputs and outputs of the layer), machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_table(machine, "low_precision").query("part == 'product'")
    seconds = table.pivot(index="shape", columns="by", values="seconds")
    speedup = pd.DataFrame({by: seconds["bf16"] / seconds[by] for by in METHODS})
    shapes = table.drop_duplicates("shape").set_index("shape")[["k", "n", "machine"]]
    return shapes.astype({"k": int, "n": int}).join(speedup)


def load_training_steps(machine: str, network: str = "vit_b_16") -> pd.DataFrame:
    """Load a network's training steps by format: ms, losses (a list of the first steps), machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_table(machine, "low_precision")
    table = table.query("part == 'training' and network == @network").set_index("how")
    return table.assign(ms=1e3 * table["seconds"])[["ms", "losses", "machine"]]
