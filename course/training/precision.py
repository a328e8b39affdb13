"""Number formats and memory layout.

The training script spells out PyTorch's own calls, because they are what you learn. These
functions make the same calls, for scripts of your own.
"""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TypeVar

import torch

from course.config import Config, change, resolve_half
from trainspeed.formats import HALF, set_tf32
from trainspeed.resources import core_count

__all__ = ["HALF", "set_tf32"]  # which scripts import from here

TensorOrModule = TypeVar("TensorOrModule", torch.Tensor, torch.nn.Module)
# The CPU instructions that training in a format needs, as named by `torch.cpu.get_capabilities`;
# "bf16" is Arm's. AVX-512's fp16 is not enough: oneDNN has no backward pass for it.
CPU_INSTRUCTIONS = {"bf16": ("avx512_bf16", "amx_bf16", "bf16"), "fp16": ("amx_fp16",)}
# The values of ONEDNN_MAX_CPU_ISA that let oneDNN use these instructions.
ONEDNN_LEVELS = {"bf16": r"BF16|FP16|AMX|AVX10", "fp16": r"AMX_FP16|AVX10_2"}


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """Return a context for the forward pass, in which eligible operators run in `precision`.

    Args:
        precision: a value of `Config.precision`; "half" is the device's own 16-bit format, and
            fp32 changes nothing.
    """
    precision = half_format(device) if precision == "half" else precision
    if precision not in HALF:
        return nullcontext()
    return torch.autocast(device.type, HALF[precision])


def channels_last(value: TensorOrModule, on: bool = True) -> TensorOrModule:
    """Store a model or a batch (N, C, H, W) with the channel index varying fastest."""
    return value.to(memory_format=torch.channels_last) if on else value


def default_device(config: Config) -> torch.device:
    """Return the device that a config uses on this machine."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator if accelerator and config.device == "auto" else torch.device("cpu")


def half_format(device: torch.device, *, scales_loss: bool = True) -> str:
    """Return the 16-bit format that a device has hardware for: bf16, fp16, or fp32 for none."""
    return resolve_half(half_units(device), scales_loss=scales_loss)


def half_units(device: torch.device) -> list[str]:
    """Return the 16-bit formats for which a device has hardware."""
    return [name for name in HALF if has_units(device, name)]


def resolve(config: Config, *, scales_loss: bool = True) -> Config:
    """Return the config for this machine: `half` becomes its device's own format.

    TF32 exists only on NVIDIA GPUs, and becomes fp32 elsewhere. `workers=-1` becomes the number of
    cores for this rank, less one for the training process. A GPT gets the sizes that its config
    leaves to the device.

    Args:
        scales_loss: whether `half` may be fp16. Without loss scaling, it is bf16 or fp32.
    """
    config = config.fitted(default_device(config).type != "cpu")
    if config.workers < 0:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        cores = int(os.environ.get("SLURM_CPUS_PER_TASK", core_count() // ranks))
        config = replace(config, workers=max(1, cores - 1))
    if config.precision not in ("half", "tf32"):
        return config
    device, precision = default_device(config), config.precision
    if precision == "half":
        precision = half_format(device, scales_loss=scales_loss and config.scales_loss)
    elif not has_units(device, "tf32"):
        precision = "fp32"
    gathers = config.gather_bf16 and precision == "bf16"
    return change(config, {"precision": precision, "gather_bf16": gathers})


def has_units(device: torch.device, precision: str) -> bool:
    """Return whether this device has instructions for the format.

    A CPU without AVX-512 BF16 or AMX still *runs* bf16, but emulated, at a small fraction of fp32's
    speed. This explains surprising ratios.

    Args:
        precision: "fp32", "tf32", "bf16" or "fp16".
    """
    if precision == "fp32":
        return True
    if device.type == "cpu":
        return _cpu_has(precision)
    if device.type == "cuda":
        if precision in ("bf16", "tf32") and torch.version.hip:
            return precision == "bf16"
        # Tensor Cores: fp16 since Volta, bf16 and TF32 since Ampere.
        needed = (7, 0) if precision == "fp16" else (8, 0)
        return torch.cuda.get_device_capability(device) >= needed
    return precision in HALF


def _cpu_has(precision: str) -> bool:
    if precision not in HALF or not torch.backends.mkldnn.is_available():
        return False
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if limit not in ("", "ALL", "DEFAULT") and not re.search(ONEDNN_LEVELS[precision], limit):
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in CPU_INSTRUCTIONS[precision])
