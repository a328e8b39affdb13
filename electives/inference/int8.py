"""Eight bits for weights and activations, after training: scales, and the loss of accuracy.

Integers are simulated by fp32 numbers that have one of 256 values; the loss is the same.
`export.write_onnx` writes a network that computes with integers. Jacob et al. 2018,
arXiv:1712.05877; Krishnamoorthi 2018, arXiv:1806.08342.
"""

from __future__ import annotations

import torch
from torch import nn

from electives.inference.variants import fold_batchnorms

MAX_STEPS = 127  # eight bits, with as many steps on either side of 0


def to_int8(numbers: torch.Tensor, scale: torch.Tensor, most: int) -> torch.Tensor:
    """Return the nearest multiples of the scale as int8, limited to ± `most` steps."""
    return (numbers / scale).round().clamp(-most, most).to(torch.int8)


def scale_of(
    numbers: torch.Tensor, most: int = MAX_STEPS, per_channel: bool = False
) -> torch.Tensor:
    """Return the scale that maps the largest number to `most`; per_channel: one per output."""
    if not per_channel:
        return numbers.abs().amax() / most
    return numbers.abs().amax(dim=tuple(range(1, numbers.ndim)), keepdim=True) / most


def quantize(
    model: nn.Module,
    calibration: torch.Tensor,
    bits: int = 8,
    per_channel: bool = True,
) -> nn.Module:
    """Copy a network with folded BatchNorms, whose layers compute with 2^bits steps.

    Args:
        calibration: images; the inputs that they cause in each layer decide its scale.
        bits: 2 to 8, because they are stored as int8.
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"bits={bits}: choose 2 to 8, because they are stored as int8")
    most = 2 ** (bits - 1) - 1
    network = fold_batchnorms(model)
    layers = [part for part in network.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    scales: dict[nn.Module, torch.Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda layer, inputs: scales.update({layer: scale_of(inputs[0], most)})
        )
        for layer in layers
    ]
    with torch.no_grad():
        network(calibration)
    for layer, hook in zip(layers, hooks):
        hook.remove()
        with torch.no_grad():
            steps = scale_of(layer.weight, most, per_channel)
            layer.weight.copy_(to_int8(layer.weight, steps, most) * steps)
        layer.register_forward_pre_hook(
            lambda layer, inputs: to_int8(inputs[0], scales[layer], most) * scales[layer]
        )
    return network
