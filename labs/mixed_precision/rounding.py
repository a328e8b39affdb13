"""Number formats: gradients in the range of fp16, and the types that autocast chooses."""

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

NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
# Bits of exponent and mantissa: IEEE 754-2008; NVIDIA A100 white paper (2020).
BITS = {"fp32": (8, 23), "TF32": (8, 10), "fp16": (5, 10), "bf16": (8, 7)}
SAMPLE = 100_000  # gradients of each kind


def _train_briefly(cfg: Config, steps: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
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


def trained_gradients(cfg: Config, steps: int = 4) -> pd.DataFrame:
    """Train the config's model for a few steps, and return `gradient_magnitudes` of the next."""
    return gradient_magnitudes(*_train_briefly(cfg, steps))


def gradient_magnitudes(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor
) -> pd.DataFrame:
    """Return |gradient| of an fp32 backward pass: columns kind (activations | weights), magnitude.

    The gradients are those of convolutions' outputs and weights, at most `SAMPLE` of each kind,
    chosen at random, with zeros.
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


def operator_types(step: Callable[[], Any]) -> pd.DataFrame:
    """Return the types that operators use in a step, below autocast.

    Columns: phase (forward | backward), operator, inputs and output (types of the floating-point
    tensors), calls; in the order of first use. Views are left out: they compute nothing.
    """

    def types(tensors: list[torch.Tensor]) -> str:
        names = [NAMES.get(t.dtype, str(t.dtype)) for t in tensors if t.is_floating_point()]
        return ", ".join(dict.fromkeys(names))

    return operator_calls(step, types)
