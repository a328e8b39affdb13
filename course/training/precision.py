"""Number formats and memory layout: the toggles. Off is a null object, never an `if`.

The training script spells out PyTorch's own calls, because they are what you learn. These
few lines are the same calls, to carry into a script of your own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch

HALF: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
TensorOrModule = TypeVar("TensorOrModule", torch.Tensor, torch.nn.Module)


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """Context for the forward pass: eligible operators run in `precision`; fp32 does nothing."""
    if precision not in HALF:
        return nullcontext()
    return torch.autocast(device.type, HALF[precision])


def set_tf32(on: bool) -> None:
    """Let CUDA's fp32 convolutions and products round inputs to TF32's 10 bits of mantissa.

    PyTorch's default is a mixture (convolutions on, products off), so a run sets both.
    """
    torch.backends.cudnn.allow_tf32 = on
    torch.backends.cuda.matmul.allow_tf32 = on


def channels_last(value: TensorOrModule, on: bool = True) -> TensorOrModule:
    """A model or a 4-d batch (N, C, H, W) stored with the channel index varying fastest."""
    return value.to(memory_format=torch.channels_last) if on else value


def is_imitated_here(precision: str = "bf16") -> bool:
    """Does software imitate the format on what `Config.device="auto"` is on this machine?"""
    found = torch.accelerator.current_accelerator(check_available=True)
    return not has_units(found or torch.device("cpu"), precision)


def has_units(device: torch.device, precision: str) -> bool:
    """Has this device instructions to train in the format, or does software imitate it slowly?

    A CPU without AVX-512 or AMX units for bf16 still *runs* bf16, at a fraction of fp32's
    speed. Knowing which one it is, is half of reading a surprising ratio.
    """
    if precision == "fp32":
        return True
    if device.type == "cpu":
        if not torch.backends.mkldnn.is_available():
            return False
        if precision == "fp16" and not torch.cpu._is_amx_fp16_supported():
            return False  # with AVX-512's fp16 alone oneDNN has units forward, and none backward
        return bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported")())
    if device.type == "cuda":
        if precision == "bf16":
            return torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.cuda.get_device_capability(device) >= (7, 0)
    return True
