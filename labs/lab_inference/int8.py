"""Eight bits for weights and activations, after training: scales, and what they cost.

Here whole numbers are only imitated, by fp32 numbers that are one of 256 steps: what is lost is the
same, and shows in the accuracy. `export.to_int8` makes a network that computes with them. Jacob et
al. 2018, arXiv:1712.05877; Krishnamoorthi 2018, arXiv:1806.08342.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
import torch
from torch import nn

from labs.lab_inference.fold import folded
from labs.lab_inference.training import images_of, top1

ToInt8 = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
MOST = 127  # of eight bits, as much on either side of 0
CALIBRATED_ON = 512  # training crops


def to_int8(numbers: torch.Tensor, scale: torch.Tensor, most: int) -> torch.Tensor:
    """The whole numbers, int8, which times the scale come nearest; at most `most` either way."""
    return (numbers / scale).round().clamp(-most, most).to(torch.int8)


def scale_of(numbers: torch.Tensor, most: int = MOST, per_channel: bool = False) -> torch.Tensor:
    """The step that brings the largest number to `most`; of weights one for each output, too."""
    if not per_channel:
        return numbers.abs().amax() / most
    largest = numbers.abs().flatten(1).amax(dim=1) / most
    return largest.reshape(-1, *[1] * (numbers.ndim - 1))


def quantized(
    model: nn.Module,
    calibration: torch.Tensor,
    bits: int = 8,
    per_channel: bool = True,
    to_int8: ToInt8 = to_int8,
) -> nn.Module:
    """A copy, BatchNorms folded, whose convolutions and linear layers see whole numbers alone.

    Args:
        calibration: images, from which it is learned how large each layer's inputs become.
        bits: 2 to 8.

    Raises:
        ValueError: another number of bits.
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"bits={bits}: choose 2 to 8, for they are kept as int8")
    most = 2 ** (bits - 1) - 1
    network = folded(model)
    layers = [part for part in network.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    scales = _calibrated(network, layers, calibration, most)
    for layer, scale in zip(layers, scales):
        with torch.no_grad():
            steps = scale_of(layer.weight, most, per_channel)
            layer.weight.copy_(to_int8(layer.weight, steps, most) * steps)
        layer.register_forward_pre_hook(_stepped(scale, most, to_int8))
    return network


@torch.inference_mode()
def _calibrated(
    network: nn.Module, layers: list[nn.Module], images: torch.Tensor, most: int
) -> list[torch.Tensor]:
    """The scale of each layer's inputs, in the order of the layers."""
    seen: dict[nn.Module, torch.Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda layer, given: seen.update({layer: scale_of(given[0], most)})
        )
        for layer in layers
    ]
    network(images)
    for hook in hooks:
        hook.remove()
    return [seen[layer].clone() for layer in layers]


def _stepped(scale: torch.Tensor, most: int, to_int8: ToInt8) -> Callable[..., Any]:
    def stepped(layer: nn.Module, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return to_int8(given[0], scale, most) * scale

    return stepped


def by_bits(
    model: nn.Module, bits: Iterable[int] = (8, 6, 5, 4, 3), images: int = 2048, **how: Any
) -> pd.DataFrame:
    """Accuracy with so many bits, one scale a tensor or one a channel of the weights.

    Columns: bits, scales ("a tensor", "a channel"), top1, fp32 (the network's own).

    Args:
        how: `to_int8`.
    """
    calibration, _ = images_of("train", CALIBRATED_ON)
    whole = top1(model, images)
    return pd.DataFrame(
        {
            "bits": count,
            "scales": "a channel" if per_channel else "a tensor",
            "top1": top1(quantized(model, calibration, count, per_channel, **how), images),
            "fp32": whole,
        }
        for per_channel in (False, True)
        for count in bits
    )


def by_calibration(model: nn.Module, images: int = 2048, **how: Any) -> pd.Series:
    """Accuracy with eight bits, by what the scales were learned from; an entry each."""
    crops, _ = images_of("train", CALIBRATED_ON)
    learned_from = {
        "512 training crops": crops,
        "8 training crops": crops[:8],
        "the same, ten times as dark": 0.1 * crops,
        "one number a thousand times too large": _with_outlier(crops),
    }
    found = {
        name: top1(quantized(model, some, **how), images) for name, some in learned_from.items()
    }
    return pd.Series({"fp32": top1(model, images), **found}, name="top1")


def _with_outlier(images: torch.Tensor) -> torch.Tensor:
    spoiled = images.clone()
    spoiled[0, 0, 0, 0] = 1000 * images.abs().max()
    return spoiled
