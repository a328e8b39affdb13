"""Tables of kernels' memory traffic."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch


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
