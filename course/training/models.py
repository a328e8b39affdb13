"""The networks of the course, and their parts, weights and FLOPs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course._compat import ATTENTION
from course.config import CHOICES

if TYPE_CHECKING:
    import pandas as pd

# Expensive operators: selective checkpointing stores their results.
aten = torch.ops.aten
COSTLY = [aten.convolution.default, aten.mm.default, aten.addmm.default, aten.bmm.default]
COSTLY += ATTENTION


def create(name: str, classes: int, image_px: int = 224) -> nn.Module:
    """Create a network with random weights and `classes` outputs.

    The last BatchNorm of each block of a ResNet starts at zero, so that every block starts as the
    identity; otherwise the first steps overshoot (Goyal et al. 2017, arXiv:1706.02677). "_cifar"
    and "_patches" are for images of 32 px. timm's networks, CoAtNet (Dai et al. 2021,
    arXiv:2106.04803) and ViT (Dosovitskiy et al. 2021, arXiv:2010.11929), encode positions, so they
    are built for one image size.

    Args:
        image_px: the side of the images; a ResNet accepts any.

    Raises:
        ValueError: the course has no network of this name.
    """
    if name not in CHOICES["model"]:
        raise ValueError(f"no model {name!r}: choose {', '.join(CHOICES['model'])}")
    if not name.startswith("resnet"):
        with keep_compiler_limit():
            import timm  # only here: it takes two seconds

        model = timm.create_model(name, num_classes=classes, img_size=image_px)
        for part in model.modules():
            if isinstance(part, timm.layers.SEModule):  # it would overwrite saved results
                part.act.inplace = False
        return model
    if name == "resnet8_patches":
        return patches(classes)
    kind, _, small = name.partition("_")
    model = torchvision.models.get_model(
        kind, weights=None, num_classes=classes, zero_init_residual=True
    )
    if small:  # ImageNet's stem would leave 8 of 32 px (He et al. 2016, section 4.2)
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model


class Residual(nn.Module):
    """Adds the input of some layers to their output."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def patches(classes: int, width: int = 16) -> nn.Sequential:
    """Create a small residual network for crops of 32 px; an epoch takes seconds on two cores.

    Each patch of 2 × 2 pixels becomes one position with 12 channels, so that the expensive first
    layers compute a quarter of the positions, and no pixel is lost.
    """

    def layer(inputs: int, outputs: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

    two, four, eight = 2 * width, 4 * width, 8 * width
    return nn.Sequential(
        nn.PixelUnshuffle(2),
        layer(12, two),
        Residual(layer(two, two), layer(two, two)),
        nn.MaxPool2d(2),
        layer(two, four),
        Residual(layer(four, four), layer(four, four)),
        nn.MaxPool2d(2),
        layer(four, eight),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(eight, classes),
    )


@contextmanager
def keep_compiler_limit() -> Iterator[None]:
    """Restore the compiler's recompile limit after importing timm, which removes it."""
    config = torch.compiler.config
    with config.patch(recompile_limit=config.recompile_limit):
        yield


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of a network, from input to output.

    Raises:
        ValueError: the network is not one of the course's.
    """
    if hasattr(model, "layer1"):  # a ResNet
        return [block for number in range(1, 5) for block in getattr(model, f"layer{number}")]
    if hasattr(model, "stages"):  # CoAtNet
        return [block for stage in model.stages for block in stage.blocks]
    if hasattr(model, "blocks"):  # ViT
        return [*model.blocks]
    raise ValueError(f"{type(model).__name__}: expected a ResNet, CoAtNet or ViT of the course")


def units(model: nn.Module, count: int) -> list[list[nn.Module]]:
    """Return the network's blocks in groups of `count` consecutive ones; none if it is 0.

    Raises:
        ValueError: the network is not one of the course's.
    """
    if not count:
        return []
    modules = blocks(model)
    return [modules[at : at + count] for at in range(0, len(modules), count)]


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable weights."""
    return sum(parameter.numel() for parameter in model.parameters())


def forward_gflop(model: nn.Module, image_px: int) -> float:
    """Return the GFLOP of one image's forward pass; a multiply-add counts as two.

    PyTorch's FlopCounterMode counts them on meta tensors, so nothing is computed.
    """
    return _count_flops(deepcopy(model).to("meta").eval(), image_px).get_total_flops() / 1e9


def describe(model: nn.Module, image_px: int) -> pd.DataFrame:
    """Return a table with one row per top-level part of the model, in the order of data flow.

    Columns: part, output (channels × height × width), parameters, forward_gflop.
    """
    import pandas as pd

    shapes: dict[str, tuple[int, ...]] = {}
    meta = deepcopy(model).to("meta").eval()
    for name, part in meta.named_children():
        part.register_forward_hook(lambda _m, _i, out, name=name: shapes.update({name: out.shape}))
    flops = _count_flops(meta, image_px).get_flop_counts()
    return pd.DataFrame(
        {
            "part": name,
            "output": " × ".join(map(str, shapes[name][1:])),
            "parameters": parameter_count(part),
            "forward_gflop": sum(flops.get(f"{type(meta).__name__}.{name}", {}).values()) / 1e9,
        }
        for name, part in meta.named_children()
    )


def _count_flops(meta: nn.Module, image_px: int) -> FlopCounterMode:
    with torch.no_grad(), (counter := FlopCounterMode(display=False, depth=2)):
        meta(torch.empty(1, 3, image_px, image_px, device="meta"))
    return counter
