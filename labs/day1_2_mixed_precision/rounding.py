"""Number formats by experiment: what they hold, what they lose, and what autocast makes of it.

Every function computes what it says with torch's own types, so all of it runs on any CPU. TF32
alone has no type in torch: it exists inside Tensor Cores, and `to_tf32` imitates its rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any

import pandas as pd
import torch
from torch import nn

from course.config import Config
from course.data.loader import image_sets, loaders, normalised
from course.training import models
from course.training.evidence.calls import operator_calls

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
TF32_MANTISSA, FP32_MANTISSA = 10, 23  # bits; NVIDIA A100 white paper (2020), IEEE 754-2008


def formats() -> pd.DataFrame:
    """The four formats of training, one row each, named fp32, TF32, fp16, bf16.

    Columns: bits, exponent_bits, mantissa_bits; and as numbers largest, smallest_normal,
    smallest_subnormal, spacing_at_1 (from 1 to the next larger number). From torch.finfo; TF32
    is fp32 with 10 bits of mantissa, 19 bits in all, which lie in memory as 32.
    """
    rows = {name: _format(torch.finfo(dtype)) for name, dtype in DTYPES.items()}
    spacing = 2.0**-TF32_MANTISSA
    dropped = FP32_MANTISSA - TF32_MANTISSA
    tf32 = {
        **rows["fp32"],
        "bits": rows["fp32"]["bits"] - dropped,
        "mantissa_bits": TF32_MANTISSA,
        "largest": (2 - spacing) * 2.0**127,  # every bit of the mantissa set
        "smallest_subnormal": rows["fp32"]["smallest_normal"] * spacing,
        "spacing_at_1": spacing,
    }
    return pd.DataFrame({"fp32": rows["fp32"], "TF32": tf32, **rows}).T.astype(
        {"bits": int, "exponent_bits": int, "mantissa_bits": int}
    )


def to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """An fp32 tensor rounded to TF32's 10 bits of mantissa (nearest; ties to even), as fp32.

    Infinities and NaN stay. Hardware may round ties otherwise; the size of the error is the same.

    Raises:
        ValueError: a tensor of another type.
    """
    if tensor.dtype != torch.float32:
        raise ValueError(f"to_tf32 got {tensor.dtype}: TF32 is a rounding of torch.float32")
    dropped = FP32_MANTISSA - TF32_MANTISSA
    bits = tensor.view(torch.int32)
    last_kept = (bits >> dropped) & 1
    rounded = (bits + (2 ** (dropped - 1) - 1) + last_kept) & -(2**dropped)
    return torch.where(tensor.isfinite(), rounded.view(torch.float32), tensor)


def started_training(cfg: Config, steps: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The config's model after a few steps of fp32 on the CPU, and the batch that comes next.

    Gradients of untrained weights mislead: the last BatchNorm of each block starts at zero, so
    most of the first step's gradients are exactly zero. Returns model, images (N, 3, H, W),
    labels (N).
    """
    torch.manual_seed(cfg.seed)
    sets = image_sets(cfg)
    batches, _ = loaders(sets, cfg, torch.device("cpu"))
    model = models.create(cfg.model, sets.classes).train()
    optimizer = torch.optim.SGD(model.parameters(), cfg.lr, momentum=cfg.momentum)
    images = labels = None
    for step, (images, labels) in enumerate(islice(batches, steps + 1)):
        images = normalised(images)
        if step < steps:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return model, images, labels


def gradient_magnitudes(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, sample: int = 200_000
) -> pd.DataFrame:
    """|gradient| of one real fp32 backward pass: columns of (weights | activations), magnitude.

    Weight gradients are those of all convolutions, activation gradients those of their outputs.
    Of each kind sample/2 values are drawn at random, zeros included; all where there are fewer.
    The gradients stay in `parameter.grad`.
    """
    found: dict[str, list[torch.Tensor]] = {"activations": [], "weights": []}
    convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d)]

    def watch(_part: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: found["activations"].append(gradient.flatten()))

    hooks = [part.register_forward_hook(watch) for part in convolutions]
    model.zero_grad()
    try:
        nn.functional.cross_entropy(model(images), labels).backward()
    finally:
        for hook in hooks:
            hook.remove()
    found["weights"] = [part.weight.grad.flatten() for part in convolutions]
    draw = torch.Generator().manual_seed(0)
    tables = [
        pd.DataFrame({"of": kind, "magnitude": _drawn(torch.cat(parts), sample // 2, draw)})
        for kind, parts in found.items()
    ]
    return pd.concat(tables, ignore_index=True)


def lost_share(magnitudes: pd.Series, scale: float = 1.0) -> dict[str, float]:
    """What becomes of the non-zero gradients in fp16, as shares of them that add up to 1.

    Keys: zero (below 2⁻²⁵, they vanish), subnormal (below 2⁻¹⁴, they keep fewer bits), normal,
    overflow (65,520 and above become infinite). `scale` multiplies them first, in fp32.

    Raises:
        ValueError: no gradient that is not zero.
    """
    values = torch.tensor(magnitudes.to_numpy(), dtype=torch.float32).abs()
    values = values[values > 0]
    if not len(values):
        raise ValueError("every gradient is zero: let the model train for a few steps first")
    half = (values * scale).half()
    normal = torch.finfo(torch.float16).smallest_normal
    zero, overflow, subnormal = half == 0, half.isinf(), (half > 0) & (half < normal)
    shares = {"zero": zero, "subnormal": subnormal, "overflow": overflow}
    shares["normal"] = ~(zero | subnormal | overflow)
    return {name: mask.double().mean().item() for name, mask in shares.items()}


def lost_updates(model: nn.Module, lr: float) -> pd.DataFrame:
    """What one update lr × gradient leaves undone, were the weights *stored* in each format.

    Columns: weights_unchanged, of the weights whose gradient is not zero; update_lost, the same
    weights' share of the sum of all |update|. The model needs gradients (`gradient_magnitudes`
    leaves some); it is not changed.
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
    """Which operators ran in which type while `step` was called, as seen below autocast.

    Columns: phase (forward | backward), operator, inputs and output (types of the floating-point
    tensors), calls; in the order of first use. Views are left out: they compute nothing.
    """
    return operator_calls(step, _types)


def scaler_course(
    steps: int = 80, init_scale: float = 2.0**24, growth_interval: int = 10
) -> pd.DataFrame:
    """A GradScaler's course in a small fp16 training: columns step, scale, skipped, loss.

    A network of two matrices learns scikit-learn's handwritten digits, on the CPU. `scale` is
    the one used in that step. `skipped`: the weights stayed as they were, since a gradient
    overflowed. The default interval between growths is 10 steps, so that growth is seen;
    PyTorch's own is 2,000.
    """
    images, labels = handwritten_digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    rows = []
    for step in range(steps):
        batch = torch.arange(64 * step, 64 * (step + 1)) % len(images)
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        before, scale = model[0].weight.detach().clone(), scaler.get_scale()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        rows.append((step, scale, torch.equal(before, model[0].weight), loss.item()))
    return pd.DataFrame(rows, columns=["step", "scale", "skipped", "loss"])


def _types(tensors: list[torch.Tensor]) -> str:
    names = [NAMES.get(t.dtype, str(t.dtype)) for t in tensors if t.is_floating_point()]
    return ", ".join(dict.fromkeys(names))


def _format(info: torch.finfo) -> dict[str, float]:
    mantissa_bits = -round(torch.tensor(info.eps).log2().item())
    return {
        "bits": info.bits,
        "exponent_bits": info.bits - 1 - mantissa_bits,
        "mantissa_bits": mantissa_bits,
        "largest": info.max,
        "smallest_normal": info.smallest_normal,
        "smallest_subnormal": info.smallest_normal * info.eps,
        "spacing_at_1": info.eps,
    }


def _drawn(values: torch.Tensor, count: int, draw: torch.Generator) -> Any:
    if count < len(values):
        values = values[torch.randint(len(values), (count,), generator=draw)]
    return values.abs().double().numpy()


@cache
def handwritten_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """scikit-learn's digits: 1,797 images of 64 pixels from 0 to 1, and their labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
