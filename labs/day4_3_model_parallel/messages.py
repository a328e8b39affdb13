"""How much ranks send in a step, by formula: gradients of copies, or results of shared layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from course.training import models

if TYPE_CHECKING:
    import pandas as pd


FP32, HALF = 4, 2  # bytes of a number


def sent(model: str, images: Sequence[int], image_px: int = 224) -> pd.DataFrame:
    """GB that are added up over ranks in a step, in bf16 by autocast: a row for a number of images.

    Columns: data, the gradients of all weights, fp32, whatever the batch; tensor, of each MLP the
    result in forward, bf16, and the features' gradient in backward, fp32, so both as large as the
    features of all images that the ranks share (Shoeybi et al. 2019, Megatron-LM,
    arXiv:1909.08053, section 3).

    Raises:
        ValueError: a name that is not in the course.
    """
    import pandas as pd

    with torch.device("meta"):
        net = models.create(model, 1000, image_px)
    of_image = (HALF + FP32) * sum(_features(net, image_px))
    weights = FP32 * models.parameter_count(net)
    rows = [(weights / 1e9, count * of_image / 1e9) for count in images]
    return pd.DataFrame(rows, columns=["data", "tensor"], index=pd.Index(images, name="images"))


def _features(net: nn.Module, image_px: int) -> list[int]:
    """Of each MLP, how many numbers an image's features have that come to it."""
    found: list[int] = []
    for block in models.blocks(net):
        if hasattr(block, "mlp"):
            block.mlp.register_forward_pre_hook(lambda _, given: found.append(given[0].numel()))
    with torch.no_grad():
        net.eval()(torch.empty(1, 3, image_px, image_px, device="meta"))
    return found


def share(model: str, ranks: int, image_px: int = 224) -> float:
    """The share of a network's weights that each of so many ranks keeps, if they cut its MLPs."""
    with torch.device("meta"):
        net = models.create(model, 1000, image_px)
    mlps = [block.mlp for block in models.blocks(net) if hasattr(block, "mlp")]
    cut = sum(models.parameter_count(mlp) - mlp.fc2.bias.numel() for mlp in mlps)
    return 1 - cut * (1 - 1 / ranks) / models.parameter_count(net)
