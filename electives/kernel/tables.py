"""Tables of kernels' memory traffic."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch

# Step of a softmax, and how often it reads and writes all numbers.
SOFTMAX_STEPS = (("maximum", 1, 0), ("minus", 1, 1), ("exp", 1, 1), ("sum", 1, 0), ("÷", 1, 1))


def softmax_traffic(numbers: int) -> pd.DataFrame:
    """Return the fp32 bytes that a softmax moves if each of its steps is an operator.

    Columns: step, read, written. A row's maximum and sum are negligible and left out.
    """
    table = pd.DataFrame(SOFTMAX_STEPS, columns=["step", "read", "written"])
    table[["read", "written"]] *= 4 * numbers
    return table


def traffic_by_tile(
    kernel: Any, sides: tuple[int, ...] = (16, 32, 64), size: int = 128
) -> pd.DataFrame:
    """Count the bytes that a product of two square fp16 matrices moves, by side of the tiles.

    Index: side. Columns: read, written.
    """
    from electives.kernel import launch
    from electives.kernel.interpreter import count_traffic

    tensors = dict(zip(("a", "b", "out"), torch.randn(3, size, size).half()))
    rows = {}
    for side in sides:
        with count_traffic(**tensors) as traffic:
            launch.matmul(kernel, **tensors, block=side)
        rows[side] = {"read": traffic.read, "written": traffic.written}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("side")
