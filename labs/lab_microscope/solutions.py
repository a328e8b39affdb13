"""The lab's three functions, complete: what the lab goes on with until a learner's are right."""

from __future__ import annotations

USED = ("884", "1688", "16816", "tensor16x8", "tensorop", "warpgroup", "nvjet")
NEVER = ("ffma", "simt", "ToNhwc", "ToNchw", "split_k_kernel")


def uses_tensor_cores(name: str) -> bool:
    """Does a kernel's name say that Tensor Cores multiply in it?"""
    return any(each in name for each in USED) and not any(each in name for each in NEVER)


def widest_load(numbers: int, itemsize: int) -> int:
    """Bytes that one load may take of a matrix whose rows have so many numbers."""
    return next(width for width in (16, 8, 4, 2, 1) if numbers * itemsize % width == 0)


def waves(m: int, n: int, tile: tuple[int, int], units: int) -> int:
    """How often the multiprocessors take a tile each, until a result of m × n is done."""
    tiles = -(-m // tile[0]) * -(-n // tile[1])
    return -(-tiles // units)
