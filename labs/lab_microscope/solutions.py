"""The lab's three functions, complete."""

from __future__ import annotations

TENSOR_CORE_WORDS = ("884", "1688", "16816", "tensor16x8", "tensorop", "warpgroup", "nvjet")
OTHER_WORDS = ("ffma", "simt", "ToNhwc", "ToNchw", "split_k_kernel")


def uses_tensor_cores(name: str) -> bool:
    """Return whether Tensor Cores multiply in a kernel, according to its name."""
    if any(word in name for word in OTHER_WORDS):
        return False
    return any(word in name for word in TENSOR_CORE_WORDS)


def widest_load(numbers: int, itemsize: int) -> int:
    """Return the bytes that one load may take from a matrix with rows of this many numbers."""
    return next(width for width in (16, 8, 4, 2, 1) if numbers * itemsize % width == 0)


def waves(m: int, n: int, tile: tuple[int, int], units: int) -> int:
    """Return how many waves of `units` tiles a result of m × n needs."""
    tiles = -(-m // tile[0]) * -(-n // tile[1])
    return -(-tiles // units)
