"""Tables about kernels: vocabulary, and memory traffic."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch

VOCABULARY = (
    ("everything that one launch starts", "grid", "grid"),
    ("what runs together on one multiprocessor", "block of threads", "program"),
    ("its number", "blockIdx.x", "tl.program_id(0)"),
    ("how many numbers it processes", "blockDim.x, one per thread", "BLOCK, in one tensor"),
    ("one of its numbers", "thread: threadIdx.x", "an element: tl.arange(0, BLOCK)"),
    ("32 threads that execute each step together", "warp", "num_warps=4, of a launch"),
    ("do not go beyond the end", "if (at < size)", "mask: inside = at < size"),
    ("memory that a block shares", "__shared__, by hand", "the compiler's task"),
    ("wait for the rest of the block", "__syncthreads()", "the compiler's task"),
    ("Tensor Cores", "wgmma or mma, by hand", "tl.dot"),
    ("launch", "add<<<blocks, threads>>>(…)", "add[blocks](…, BLOCK=256)"),
)
# Step of a softmax, and how often it reads and writes all numbers.
SOFTMAX_STEPS = (("maximum", 1, 0), ("minus", 1, 1), ("exp", 1, 1), ("sum", 1, 0), ("÷", 1, 1))


def vocabulary() -> pd.DataFrame:
    """Return the terms of CUDA C++ and of Triton for the same things."""
    columns = ["what", "CUDA C++", "Triton"]
    return pd.DataFrame(VOCABULARY, columns=columns).set_index("what")


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
    from labs.lab_kernel import launch
    from labs.lab_kernel.interpreter import count_traffic

    tensors = dict(zip(("a", "b", "out"), torch.randn(3, size, size).half()))
    rows = {}
    for side in sides:
        with count_traffic(**tensors) as traffic:
            launch.matmul(kernel, **tensors, block=side)
        rows[side] = {"read": traffic.read, "written": traffic.written}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("side")
