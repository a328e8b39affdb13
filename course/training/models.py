"""The networks of the course, and what they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course.config import CHOICES
from course.training.racing.patches import patches

if TYPE_CHECKING:
    import pandas as pd

# What takes long to compute: checkpointing that selects by operator keeps the results of these.
COSTLY = [
    torch.ops.aten.convolution.default,
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
]


def create(name: str, classes: int, image_px: int = 224) -> nn.Module:
    """A network with random weights and `classes` outputs: of torchvision a ResNet, else timm's.

    Of a ResNet the last BatchNorm of each block starts at zero, so that every block starts as the
    identity; without it the first steps overshoot (Goyal et al. 2017, arXiv:1706.02677). "_cifar"
    and "_patches", which is the course's own, are for images of 32 px. timm's networks, CoAtNet
    (Dai et al. 2021, arXiv:2106.04803) and ViT (Dosovitskiy et al. 2021, arXiv:2010.11929), know
    where in an image they look, and so are made for one size.

    Args:
        image_px: of the images a side; a ResNet takes any.

    Raises:
        ValueError: a name that is not in the course; the message lists those that are.
    """
    if name not in CHOICES["model"]:
        raise ValueError(f"no model {name!r}: choose {', '.join(CHOICES['model'])}")
    if not name.startswith("resnet"):
        with compiler_kept():
            import timm  # only here: it takes two seconds

        model = timm.create_model(name, num_classes=classes, img_size=image_px)
        for part in model.modules():
            if isinstance(part, timm.layers.SEModule):  # it would overwrite what is to be kept
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


@contextmanager
def compiler_kept() -> Iterator[None]:
    """Around an import of timm, one of whose modules lifts the compiler's limit for all of us."""
    compiler = torch._dynamo.config
    with compiler.patch(recompile_limit=compiler.recompile_limit):
        yield


def blocks(model: nn.Module) -> list[nn.Module]:
    """The parts of a network that follow each other and are built alike, from input to output.

    Raises:
        ValueError: a network that is none of the course's.
    """
    if hasattr(model, "layer1"):  # a ResNet
        return [block for number in range(1, 5) for block in getattr(model, f"layer{number}")]
    if hasattr(model, "stages"):  # CoAtNet
        return [block for stage in model.stages for block in stage.blocks]
    if hasattr(model, "blocks"):  # ViT
        return [*model.blocks]
    raise ValueError(f"{type(model).__name__} has no blocks that are known: ResNet, CoAtNet, ViT")


def units(model: nn.Module, count: int) -> list[list[nn.Module]]:
    """Its blocks in groups of `count` that follow each other; with 0 there is none.

    Raises:
        ValueError: a network that is none of the course's.
    """
    found = blocks(model) if count else []
    return [found[at : at + count] for at in range(0, len(found), count or 1)]


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
