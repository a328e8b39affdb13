"""Check that the kernels support a network: a torchvision bottleneck ResNet, layer by layer."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

LAYERS = ("layer1", "layer2", "layer3", "layer4")
STEM, HEAD = 0, len(LAYERS) + 1  # the first and last segment
KNOWN = "torchvision's bottleneck ResNets: resnet50, 101 and 152, wide_resnet and resnext"


def difference(model: nn.Module) -> str:
    """Return what the kernels do not support in a network; "" if they support all of it."""
    if not isinstance(model, ResNet):
        return f"{type(model).__name__} is not a ResNet"
    if type(model) is not ResNet and not getattr(model, "is_fast_resnet", False):
        return f"{type(model).__name__} is a subclass of ResNet, and would lose its methods"
    if reason := _outside_blocks(model):
        return reason
    blocks = _named_blocks(model)
    if len({block for _, block in blocks}) < len(blocks):
        return "a block is used twice"
    for name, block in blocks:
        if reason := _in_block(name, block):
            return reason
    if model.layer1[0].conv2.stride != (1, 1):  # its shortcut's sums come from the max pool
        return "layer1.0.conv2 has a stride"
    return ""


def _named_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(f"{name}.{i}", b) for name in LAYERS for i, b in enumerate(getattr(model, name))]


def _outside_blocks(model: nn.Module) -> str:
    for name in LAYERS:
        if type(getattr(model, name)) is not nn.Sequential or not len(getattr(model, name)):
            return f"{name} is {type(getattr(model, name)).__name__}, not a sequence of blocks"
    return (
        _convolution("conv1", model.conv1, in_channels=3, kernel_size=7, stride=2, padding=3)
        or _norm("bn1", model.bn1)
        or _layer("relu", model.relu, nn.ReLU)
        or _layer("maxpool", model.maxpool, nn.MaxPool2d)
        or _layer("avgpool", model.avgpool, nn.AdaptiveAvgPool2d)
        or _layer("fc", model.fc, nn.Linear)
        or _settings("maxpool", model.maxpool, kernel_size=3, stride=2, padding=1, dilation=1)
        or _settings("maxpool", model.maxpool, ceil_mode=False)
        or ("" if model.avgpool.output_size in (1, (1, 1)) else "avgpool keeps more than a pixel")
        or ("fc has no bias" if model.fc.bias is None else "")
    )


def _in_block(name: str, block: nn.Module) -> str:
    if type(block) is not Bottleneck:
        return f"{name} is {type(block).__name__}, not a Bottleneck"
    stride, groups = block.conv2.stride, block.conv2.groups
    shortcut = block.downsample
    reason = (
        _convolution(f"{name}.conv1", block.conv1, kernel_size=1, stride=1, padding=0)
        or _convolution(f"{name}.conv2", block.conv2, kernel_size=3, padding=1, groups=groups)
        or _convolution(f"{name}.conv3", block.conv3, kernel_size=1, stride=1, padding=0)
        or ("" if stride in ((1, 1), (2, 2)) else f"{name}.conv2 has stride {stride}")
        or _layer(f"{name}.relu", block.relu, nn.ReLU)
        or next(
            (r for n in (1, 2, 3) if (r := _norm(f"{name}.bn{n}", getattr(block, f"bn{n}")))), ""
        )
    )
    if reason or shortcut is None:
        return reason
    if type(shortcut) is not nn.Sequential or len(shortcut) != 2:
        return f"{name}.downsample is not a convolution and a BatchNorm"
    return _convolution(
        f"{name}.downsample.0", shortcut[0], kernel_size=1, stride=stride[0], padding=0
    ) or _norm(f"{name}.downsample.1", shortcut[1])


def _layer(name: str, layer: nn.Module, kind: type) -> str:
    return "" if type(layer) is kind else f"{name} is {type(layer).__name__}, not {kind.__name__}"


def _settings(name: str, layer: nn.Module, **expected: Any) -> str:
    for key, value in expected.items():
        actual = getattr(layer, key)
        if actual not in (value, (value, value)):
            return f"{name} has {key}={actual}, not {value}"
    return ""


def _convolution(name: str, conv: nn.Module, **expected: Any) -> str:
    settings = {"dilation": 1, "groups": 1, "padding_mode": "zeros", "bias": None} | expected
    return _layer(name, conv, nn.Conv2d) or _settings(name, conv, **settings)


def _norm(name: str, norm: nn.Module) -> str:
    """Check for a BatchNorm over only this process's images, with a fixed momentum."""
    expected = {"affine": True, "track_running_stats": True}
    return (
        _layer(name, norm, nn.BatchNorm2d)
        or _settings(name, norm, **expected)
        or (f"{name} has momentum=None" if norm.momentum is None else "")
    )
