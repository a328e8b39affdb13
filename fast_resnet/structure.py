"""Check that the kernels support a network, a bottleneck ResNet, layer by layer."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

LAYERS = ("layer1", "layer2", "layer3", "layer4")
STEM, HEAD = 0, len(LAYERS) + 1  # the first and last segment
KNOWN = "torchvision's and timm's plain ResNets: resnet50, 101 and 152, wide_resnet and resnext"
OFF_IN_TIMM = ("drop_rate", "grad_checkpointing")  # torchvision's network has none of them


def library(model: nn.Module) -> str:
    """Return the library whose ResNet this is, or an instance of a subclass: "" if none."""
    if isinstance(model, ResNet):
        return "torchvision"
    timm = sys.modules.get("timm.models.resnet")
    return "timm" if timm and isinstance(model, timm.ResNet) else ""


def difference(model: nn.Module) -> str:
    """Return what the kernels do not support in a network; "" if they support all of it."""
    if not (kind := library(model)):
        return f"{type(model).__name__} is not a ResNet"
    original = ResNet if kind == "torchvision" else sys.modules["timm.models.resnet"].ResNet
    if type(model) is not original and not hasattr(model, "library"):
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
    for name in OFF_IN_TIMM:
        if getattr(model, name, None):
            return f"{name} is {getattr(model, name)}"
    return (
        _convolution("conv1", model.conv1, in_channels=3, kernel_size=7, stride=2, padding=3)
        or _settings("conv1", model.conv1, out_channels=64)
        or _norm("bn1", model.bn1)
        or _relus("", model, "relu", "act1")
        or _layer("maxpool", model.maxpool, nn.MaxPool2d)
        or _average_pool(model)
        or _layer("fc", model.fc, nn.Linear)
        or _settings("maxpool", model.maxpool, kernel_size=3, stride=2, padding=1, dilation=1)
        or _settings("maxpool", model.maxpool, ceil_mode=False)
        or ("fc has no bias" if model.fc.bias is None else "")
    )


def _average_pool(model: nn.Module) -> str:
    if library(model) == "torchvision":
        name, pool = "avgpool", model.avgpool
    else:
        name, pool = "global_pool", getattr(model.global_pool, "pool", None)
        if type(getattr(model.global_pool, "flatten", None)) is not nn.Flatten:
            return f"{name} does not flatten"
    return _layer(name, pool, nn.AdaptiveAvgPool2d) or _settings(name, pool, output_size=1)


def _relus(prefix: str, module: nn.Module, *names: str) -> str:
    """Check activations: torchvision's block has one, and timm's has three."""
    relus = [(prefix + name, layer) for name, layer in module.named_children() if name in names]
    return next((reason for at in relus if (reason := _layer(*at, nn.ReLU))), "")


def _in_timms_block(name: str, block: nn.Module) -> str:
    """Check the layers that torchvision's block does not have."""
    for part in ("drop_block", "aa", "se", "drop_path"):
        layer = getattr(block, part)
        if type(layer) not in (type(None), nn.Identity):
            return f"{name}.{part} is {type(layer).__name__}, which torchvision's ResNets lack"
    return ""


def _in_block(name: str, block: nn.Module) -> str:
    timm = sys.modules.get("timm.models.resnet")
    if timm and type(block) is timm.Bottleneck:
        if reason := _in_timms_block(name, block):
            return reason
    elif type(block) is not Bottleneck:
        return f"{name} is {type(block).__name__}, not a Bottleneck"
    stride, groups = block.conv2.stride, block.conv2.groups
    shortcut = block.downsample
    reason = (
        _convolution(f"{name}.conv1", block.conv1, kernel_size=1, stride=1, padding=0)
        or _convolution(f"{name}.conv2", block.conv2, kernel_size=3, padding=1, groups=groups)
        or _convolution(f"{name}.conv3", block.conv3, kernel_size=1, stride=1, padding=0)
        or ("" if stride in ((1, 1), (2, 2)) else f"{name}.conv2 has stride {stride}")
        or _relus(f"{name}.", block, "relu", "act1", "act2", "act3")
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
