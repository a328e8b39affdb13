"""Number formats of products: their names, their types, and PyTorch's settings for TF32."""

from __future__ import annotations

import warnings

import torch

HALF: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS = ("fp32", "tf32", *HALF)


def set_tf32(convolutions: bool, products: bool | None = None) -> None:
    """Let CUDA's fp32 convolutions and products round inputs to TF32's 10 bits of mantissa.

    PyTorch enables TF32 for convolutions but not for products by default, so a run sets both.

    Args:
        products: the same as for convolutions if None.
    """
    products = convolutions if products is None else products
    # The old settings must agree with the new ones: torch.compile still reads them, and a setting
    # that was only made in the new way is an error then (github.com/pytorch/pytorch/issues/166387).
    torch.set_float32_matmul_precision("high" if products else "highest")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated since PyTorch 2.9
        torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cuda.matmul.fp32_precision = "tf32" if products else "ieee"
    torch.backends.cudnn.conv.fp32_precision = "tf32" if convolutions else "ieee"


def tf32_settings() -> tuple[bool, bool]:
    """Return whether convolutions and products may use TF32: the arguments of `set_tf32`."""
    parts = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    return tuple(part.fp32_precision == "tf32" for part in parts)
