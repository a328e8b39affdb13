"""The names of kernels that use Tensor Cores."""

from __future__ import annotations

TENSOR_CORE_WORDS = ("884", "1688", "16816", "tensor16x8", "tensorop", "warpgroup", "nvjet")
OTHER_WORDS = ("ffma", "simt", "ToNhwc", "ToNchw", "split_k_kernel")


def uses_tensor_cores(name: str) -> bool:
    """Return whether Tensor Cores multiply in a kernel, according to its name."""
    if any(word in name for word in OTHER_WORDS):
        return False
    return any(word in name for word in TENSOR_CORE_WORDS)
