"""Which form of the algebra trains a network here, and why not the other."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from course.config import Config
from course.training.algebra import plain
from course.training.models import blocks
from course.training.precision import HALF

_made: dict[str, str] = {}


def convert(model: nn.Module, cfg: Config) -> nn.Module:
    """The same network, whose training moves fewer bytes; weights keep their names and places.

    Raises:
        ValueError: a network that the algebra does not know; the message says what of it.
    """
    if reason := refusal(model):
        raise ValueError(
            f"algebra=True: {reason}. It is for torchvision's resnet50, resnet101 and resnet152"
        )
    reason = why_no_kernels(model, cfg)
    _made.update(form="plain" if reason else "kernels", why=reason)
    said = f"in plain PyTorch, equal but slow: {reason}" if reason else "by kernels in Triton"
    if os.environ.get("RANK", "0") == "0":
        print(f"algebra {said}", flush=True)
    model = plain.convert(model)  # also what kernels leave to PyTorch: see fused.py
    if not reason:
        from course.training.algebra import fused  # only here: it needs Triton

        model = fused.convert(model)
    return model


def last() -> dict[str, str]:
    """For the record: which form this process has made last, and why it is not the other."""
    return dict(_made)


def refusal(model: nn.Module) -> str:
    """What of a network neither form knows; "" where it is one to convert."""
    if not isinstance(model, ResNet):
        return f"{type(model).__name__} is no ResNet"
    for block in blocks(model):
        if type(block) is not Bottleneck:
            return f"its blocks are {type(block).__name__}, with no 1x1 convolution that widens"
        if block.conv2.groups > 1:
            return f"its 3x3 convolutions are in {block.conv2.groups} groups"
        if block.conv3.out_channels != 4 * block.conv3.in_channels:
            return "its blocks widen by another factor than 4"
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and type(layer) is not nn.BatchNorm2d:
            return f"{type(layer).__name__} takes its statistics from elsewhere"
    return ""


def why_no_kernels(model: nn.Module, cfg: Config) -> str:
    """Why the form in Triton does not run here; "" where it does."""
    weight = model.conv1.weight
    if weight.device.type != "cuda" or torch.version.cuda is None:
        return f"the kernels are for an NVIDIA GPU, and this trains on {weight.device.type}"
    if find_spec("triton") is None:
        return "the kernels are written in Triton, which is not installed"
    if torch.cuda.get_device_capability(weight.device) < (8, 0):
        return f"{torch.cuda.get_device_name(weight.device)} is older than the kernels' A100"
    if cfg.precision not in HALF:
        return f"the kernels compute in 16 bits, and the precision is {cfg.precision}"
    if not cfg.channels_last:
        return "the kernels read images channels last, and they are not"
    if model.conv1.kernel_size != (7, 7):
        return "the kernels know ImageNet's first layer, and this is another"
    return ""
