"""A small bottleneck ResNet that needs every kind of kernel, and a batch."""

from __future__ import annotations

import copy

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision.models.resnet import Bottleneck, ResNet

CLASSES = 8


def interpreter_problem() -> str:
    """Return why Triton's interpreter cannot run the kernels here, or an empty string."""
    try:
        import triton
    except ImportError:
        return "the kernels are written in Triton, which is not installed"
    if triton.__version__ < "3.7" and numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0":
        return "Triton 3.6 does not interpret loops with NumPy 2.4"
    return ""


def network(seed: int = 0, groups: int = 1, base_width: int = 64) -> ResNet:
    """Build a ResNet with every kind of shortcut, and at first a quarter of ResNet-50's channels.

    Its shortcuts: of stride 1 and none in one layer, none from layer to layer, and one of stride 2
    to four times the channels.
    """
    torch.manual_seed(seed)
    with torch.device("meta"):
        net = ResNet(Bottleneck, [2, 1, 1, 1])
    net.conv1, net.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
    net.inplanes, net.groups, net.base_width = 64, groups, base_width
    layers = [(16, 2, 1), (16, 1, 1), (16, 1, 1), (64, 1, 2)]
    for number, (planes, blocks, stride) in enumerate(layers, 1):
        setattr(net, f"layer{number}", net._make_layer(Bottleneck, planes, blocks, stride))
    net.fc = nn.Linear(net.inplanes, CLASSES)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.3, 0.3)
    return net.to(memory_format=torch.channels_last)


def batch(size: int = 4, pixels: int = 32, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noise [size, 3, pixels, pixels] and labels."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 3, pixels, pixels, generator=generator)
    return images.to(memory_format=torch.channels_last), torch.arange(size) % CLASSES


def gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradient of each weight, in order, after one more backward pass."""
    cross_entropy(model(images), labels).backward()
    return [weight.grad for weight in model.parameters()]


def relative(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Return the largest distance of a tensor, relative to its norm."""
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(ours, theirs, strict=True))


def median(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Return the median distance of a tensor, relative to its norm."""
    distances = [(a - b).norm() / b.norm() for a, b in zip(ours, theirs, strict=True)]
    return torch.stack(distances).median().item()


def rounding_bound(net: ResNet, precision: torch.dtype) -> float:
    """Return what gradients may be off in 16 bits, relative to their norm, on any processor.

    Independent roundings add up to the root of their number, in units of half a last place. Where a
    ReLU's input is nearer to zero than that, its sign is random: of values of about unit variance,
    this is at most that share. Their gradients are then wrong altogether, in each ReLU others, and
    the norm is the root of their share.
    """
    layers = [layer for layer in net.modules() if isinstance(layer, (nn.Conv2d, nn.BatchNorm2d))]
    relus = 1 + 3 * sum(isinstance(block, Bottleneck) for block in net.modules())
    roundings = 2 * len(layers)  # of weights or scales, and of results
    return (relus * roundings**0.5 * torch.finfo(precision).eps / 2) ** 0.5


def nearest_zero(net: ResNet, images: torch.Tensor) -> float:
    """Return the ReLU input that is nearest to zero."""
    nearest, twin = [], copy.deepcopy(net).double()
    for layer in twin.modules():
        if isinstance(layer, nn.ReLU):
            layer.register_forward_pre_hook(lambda _, x: nearest.append(x[0].abs().min().item()))
    with torch.no_grad():
        twin(images.double())
    return min(nearest)


def network_and_batch(
    shares: list[slice], **kind: int
) -> tuple[ResNet, torch.Tensor, torch.Tensor]:
    """Return a network and a batch in which no ReLU gets an input near zero.

    Rounding could flip such an input, and change all gradients below it.
    """
    for seed in range(1000):
        net, (images, labels) = network(seed, **kind), batch(seed=seed)
        if min(nearest_zero(net, images[share]) for share in shares) > 4e-6:
            return net, images, labels
    raise RuntimeError("every seed gives a ReLU input near zero")
