"""Number formats by experiment: what they represent, what they lose, and what autocast does.

Everything runs on any CPU. PyTorch has no dtype for TF32, which exists only in Tensor Cores:
`round_to_tf32` imitates its rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pandas as pd
import torch
from torch import nn

from course import Config
from course.data import image_sets, loaders, normalised
from course.training import models, operator_calls

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Bits of exponent and mantissa: IEEE 754-2008; NVIDIA A100 white paper (2020).
BITS = {"fp32": (8, 23), "TF32": (8, 10), "fp16": (5, 10), "bf16": (8, 7)}
SAMPLE = 100_000  # gradients of each kind


def formats() -> pd.DataFrame:
    """Return a row per format: fp32, TF32, fp16, bf16.

    Columns: bits, exponent_bits, mantissa_bits; largest, smallest_normal, smallest_subnormal,
    spacing_at_1 (from 1 to the next larger number). TF32's 19 bits take 32 bits of memory.
    """
    rows = {}
    for name, (exponent_bits, mantissa_bits) in BITS.items():
        largest_exponent, spacing = 2 ** (exponent_bits - 1) - 1, 2.0**-mantissa_bits
        smallest_normal = 2.0 ** (1 - largest_exponent)
        rows[name] = {
            "bits": 1 + exponent_bits + mantissa_bits,
            "exponent_bits": exponent_bits,
            "mantissa_bits": mantissa_bits,
            "largest": (2 - spacing) * 2.0**largest_exponent,
            "smallest_normal": smallest_normal,
            "smallest_subnormal": smallest_normal * spacing,
            "spacing_at_1": spacing,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def round_to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Round fp32 to TF32's 10 bits of mantissa (to nearest, ties to even), and return fp32.

    Infinities and NaN stay. Hardware may round ties differently, with an equal error.

    Raises:
        ValueError: the tensor is not fp32.
    """
    if tensor.dtype != torch.float32:
        raise ValueError(f"round_to_tf32 got {tensor.dtype}: expected torch.float32")
    dropped = BITS["fp32"][1] - BITS["TF32"][1]
    bits = tensor.view(torch.int32)
    last_bit = (bits >> dropped) & 1
    rounded = (bits + (2 ** (dropped - 1) - 1) + last_bit) & -(2**dropped)
    return torch.where(tensor.isfinite(), rounded.view(torch.float32), tensor)


def train_briefly(cfg: Config, steps: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Train the config's model for a few steps in fp32 on the CPU.

    The last BatchNorm of each block starts at zero, so that most gradients of the first step are
    exactly zero: gradients of untrained weights are misleading.

    Returns:
        The model, and the next batch: images (N, 3, H, W) and labels (N).
    """
    torch.manual_seed(cfg.seed)
    sets = image_sets(cfg)
    batches, _ = loaders(sets, cfg, torch.device("cpu"))
    model = models.create(cfg.model, sets.classes).train()
    optimizer = torch.optim.SGD(model.parameters(), cfg.lr, momentum=cfg.momentum)
    *training, (next_images, next_labels) = islice(batches, steps + 1)
    for images, labels in training:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(normalised(images)), labels).backward()
        optimizer.step()
    return model, normalised(next_images), next_labels


def gradient_magnitudes(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor
) -> pd.DataFrame:
    """Return |gradient| of an fp32 backward pass: columns kind (activations | weights), magnitude.

    The gradients are those of convolutions' outputs and weights, at most `SAMPLE` of each kind,
    chosen at random, with zeros. Weights keep their gradients in `parameter.grad`.
    """
    convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d)]
    activations: list[torch.Tensor] = []

    def watch(_part: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: activations.append(gradient.flatten()))

    hooks = [part.register_forward_hook(watch) for part in convolutions]
    model.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    for hook in hooks:
        hook.remove()
    weights = [part.weight.grad.flatten() for part in convolutions]
    generator = torch.Generator().manual_seed(0)
    tables = []
    for kind, gradients in (("activations", activations), ("weights", weights)):
        values = torch.cat(gradients).abs().double()
        if len(values) > SAMPLE:
            values = values[torch.randint(len(values), (SAMPLE,), generator=generator)]
        tables.append(pd.DataFrame({"kind": kind, "magnitude": values.numpy()}))
    return pd.concat(tables, ignore_index=True)


def fp16_shares(magnitudes: pd.Series, scale: float = 1.0) -> dict[str, float]:
    """Return what happens to gradients that are not zero in fp16, as shares that add up to 1.

    Keys: zero (up to 2⁻²⁵), subnormal (below 2⁻¹⁴: fewer bits), normal, overflow (from 65,520:
    infinite).

    Args:
        scale: multiplies the gradients first, in fp32.

    Raises:
        ValueError: all gradients are zero.
    """
    values = torch.tensor(magnitudes.to_numpy(), dtype=torch.float32)
    values = values[values > 0]
    if not len(values):
        raise ValueError("every gradient is zero: let the model train for a few steps first")
    half = (values * scale).half()
    zero, overflow = half == 0, half.isinf()
    subnormal = ~zero & (half < torch.finfo(torch.float16).smallest_normal)
    normal = ~(zero | subnormal | overflow)
    masks = {"zero": zero, "subnormal": subnormal, "normal": normal, "overflow": overflow}
    return {name: mask.double().mean().item() for name, mask in masks.items()}


def lost_updates(model: nn.Module, lr: float) -> pd.DataFrame:
    """Return what an update lr × gradient would lose if weights were *stored* in each format.

    Columns: weights_unchanged, the share of weights whose gradient is not zero; update_lost, those
    weights' share of the sum of |update|. The model needs gradients, as `gradient_magnitudes`
    leaves them, and does not change.
    """
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    weight = torch.cat([parameter.detach().flatten() for parameter in trained])
    update = lr * torch.cat([parameter.grad.flatten() for parameter in trained])
    weight, update = weight[update != 0], update[update != 0]
    rows = {}
    for name, dtype in DTYPES.items():
        stored = weight.to(dtype)
        same = (stored.float() - update).to(dtype) == stored
        lost = update[same].abs().double().sum() / update.abs().double().sum()
        rows[name] = {"weights_unchanged": same.double().mean().item(), "update_lost": lost.item()}
    return pd.DataFrame(rows).T


def operator_types(step: Callable[[], Any]) -> pd.DataFrame:
    """Return the types that operators use in a step, below autocast.

    Columns: phase (forward | backward), operator, inputs and output (types of the floating-point
    tensors), calls; in the order of first use. Views are left out: they compute nothing.
    """

    def types(tensors: list[torch.Tensor]) -> str:
        names = [NAMES.get(t.dtype, str(t.dtype)) for t in tensors if t.is_floating_point()]
        return ", ".join(dict.fromkeys(names))

    return operator_calls(step, types)
