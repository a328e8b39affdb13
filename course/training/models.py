"""The networks of the course, and what they are made of."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course.config import CHOICES

if TYPE_CHECKING:
    import pandas as pd


def create(name: str, classes: int) -> nn.Module:
    """A torchvision ResNet with random weights and `classes` outputs; "_cifar" for 32-px images.

    The last BatchNorm of each block starts at zero, so that every block starts as the
    identity; without it the first steps overshoot (Goyal et al. 2017, arXiv:1706.02677).

    Raises:
        ValueError: a name that is not in the course; the message lists those that are.
    """
    if name not in CHOICES["model"]:
        raise ValueError(f"no model {name!r}: choose {', '.join(CHOICES['model'])}")
    kind, _, small = name.partition("_")
    model = torchvision.models.get_model(
        kind, weights=None, num_classes=classes, zero_init_residual=True
    )
    if (
        small
    ):  # images of 32 px: ImageNet's stem would leave 8 of them (He et al. 2016, section 4.2)
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model


def parameter_count(model: nn.Module) -> int:
    """How many numbers training adjusts."""
    return sum(parameter.numel() for parameter in model.parameters())


def forward_gflop(model: nn.Module, image_px: int) -> float:
    """GFLOP of one image's forward pass; a multiplication and an addition count as two.

    Counted by PyTorch's FlopCounterMode on meta tensors, so nothing is computed.
    """
    return _run(_on_meta(model), image_px).get_total_flops() / 1e9


def describe(model: nn.Module, image_px: int) -> pd.DataFrame:
    """One row a top-level part of the model, in the order in which data flows through it.

    Columns: part, output (channels × height × width), parameters, forward_gflop.
    """
    import pandas as pd

    shapes: dict[str, tuple[int, ...]] = {}
    meta = _on_meta(model)
    for name, part in meta.named_children():
        part.register_forward_hook(lambda _m, _i, out, name=name: shapes.update({name: out.shape}))
    counted = _run(meta, image_px).get_flop_counts()
    return pd.DataFrame(
        {
            "part": name,
            "output": " × ".join(map(str, shapes[name][1:])),
            "parameters": parameter_count(part),
            "forward_gflop": sum(counted.get(f"{type(meta).__name__}.{name}", {}).values()) / 1e9,
        }
        for name, part in meta.named_children()
    )


def _on_meta(model: nn.Module) -> nn.Module:
    return deepcopy(model).to("meta").eval()


def _run(meta: nn.Module, image_px: int) -> FlopCounterMode:
    with torch.no_grad(), (counter := FlopCounterMode(display=False, depth=2)):
        meta(torch.empty(1, 3, image_px, image_px, device="meta"))
    return counter
