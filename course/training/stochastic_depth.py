"""Networks of which a training step uses a part, chosen by chance."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.ops import StochasticDepth


class Heads(nn.Module):
    """A ResNet with several last layers, of which each training step uses one, by chance.

    The weights of the others get no gradient in that step. Each process chooses for itself.
    Images of shape (N, 3, H, W) in, scores of shape (N, classes) out. Validation uses the first.
    """

    def __init__(self, model: nn.Module, number: int = 2) -> None:
        super().__init__()
        inputs, classes = model.fc.in_features, model.fc.out_features
        model.fc = nn.Identity()
        self.body = model
        self.heads = nn.ModuleList(nn.Linear(inputs, classes) for _ in range(number))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores by one of the heads."""
        chosen = int(torch.randint(len(self.heads), ())) if self.training else 0
        return self.heads[chosen](self.body(images))


def masked_depth(model: nn.Module, drop: float = 0.2) -> nn.Module:
    """The same ResNet with stochastic depth (Huang et al. 2016, arXiv:1603.09382), by masks.

    In training each residual block's branch is multiplied, image by image, by 0 with probability
    `drop` and otherwise by 1 / (1 - drop). Every weight is used in every step; where the mask is
    0 its gradient is 0, which is not the same as none.
    """
    for block in model.modules():
        if isinstance(block, BasicBlock):
            block.bn2 = nn.Sequential(block.bn2, StochasticDepth(drop, "row"))
        elif isinstance(block, Bottleneck):
            block.bn3 = nn.Sequential(block.bn3, StochasticDepth(drop, "row"))
    return model.train(model.training)  # the new parts, too
