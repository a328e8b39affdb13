"""Words, steps and tiles of kernels, as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch

from labs.lab_kernel import launch
from labs.lab_kernel.interpreter import Moved, moved_by

WORDS = (
    ("all that one launch starts", "grid", "grid"),
    ("what runs together on one multiprocessor", "block of threads", "program"),
    ("which one am I?", "blockIdx.x", "tl.program_id(0)"),
    ("how many numbers has it?", "blockDim.x, one a thread", "BLOCK, in one tensor"),
    ("one number of it", "thread: threadIdx.x", "an element: tl.arange(0, BLOCK)"),
    ("32 that take each step together", "warp", "num_warps=4, of a launch"),
    ("do not reach beyond the end", "if (at < size)", "mask: inside = at < size"),
    ("memory that a block shares", "__shared__, by hand", "the compiler's task"),
    ("wait for the block's others", "__syncthreads()", "the compiler's task"),
    ("Tensor Cores", "wgmma or mma, by hand", "tl.dot"),
    ("launch", "add<<<blocks, threads>>>(…)", "add[blocks](…, BLOCK=256)"),
)


def words() -> pd.DataFrame:
    """What CUDA C++ calls something, and what Triton calls it."""
    return pd.DataFrame(WORDS, columns=["what", "CUDA C++", "Triton"]).set_index("what")


def steps(what: str, numbers: int, bytes_each: int = 4) -> pd.DataFrame:
    """What an operation moves if each of its steps reads and writes memory, step by step.

    Args:
        what: "softmax", or "norm_relu".

    Columns: step, read, written, in bytes. What is small beside the numbers (a row's maximum, a
    channel's scale) is left out.
    """
    known = {
        "softmax": (("maximum", 1, 0), ("minus", 1, 1), ("exp", 1, 1), ("sum", 1, 0), ("÷", 1, 1)),
        "norm_relu": (("BatchNorm", 1, 1), ("ReLU", 1, 1)),
    }
    if what not in known:
        raise ValueError(f"what={what!r}: choose {' or '.join(known)}")
    table = pd.DataFrame(known[what], columns=["step", "read", "written"])
    table[["read", "written"]] *= numbers * bytes_each
    return table


def tile_functions() -> tuple[launch.Kernel, launch.Kernel]:
    """`load_tile` and `store_tile`, which kernels of products call."""
    from labs.lab_kernel.solutions import load_tile, store_tile

    return load_tile, store_tile


def tiles(
    kernel: launch.Kernel, sides: tuple[int, ...] = (16, 32, 64), size: int = 128
) -> pd.DataFrame:
    """What a product of two square fp16 matrices moves, by the side of its tiles.

    Columns: way, read, written (bytes), programs, dots. The index is the side.
    """
    a, b = torch.randn(2, size, size, generator=torch.Generator().manual_seed(0)).half()
    rows = {side: _moved(launch.matmul, kernel, a, b, side) for side in sides}
    found = {
        side: {
            "way": f"tiles of {side}",
            "read": each.read,
            "written": each.written,
            "programs": each.programs,
            "dots": each.dots,
        }
        for side, each in rows.items()
    }
    return pd.DataFrame.from_dict(found, orient="index").rename_axis("side")


def _moved(
    run: Callable[..., Any], kernel: launch.Kernel, a: torch.Tensor, b: torch.Tensor, side: int
) -> Moved:
    out = launch.unwritten((len(a), b.shape[1]), a)
    return moved_by(lambda **given: run(kernel, **given, side=side), a=a, b=b, out=out)
