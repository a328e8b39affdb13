"""Networks that use only a random part of their layers in each training step."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.ops import StochasticDepth


class Heads(nn.Module):
    """A ResNet with several last layers; each training step uses a random one of them.

    The weights of the others get no gradient in that step. Each process chooses independently.
    Input: images (N, 3, H, W). Output: scores (N, classes). Validation uses the first layer.
    """

    def __init__(self, model: nn.Module, number: int = 2) -> None:
        super().__init__()
        inputs, classes = model.fc.in_features, model.fc.out_features
        model.fc = nn.Identity()
        self.body = model
        self.heads = nn.ModuleList(nn.Linear(inputs, classes) for _ in range(number))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        chosen = int(torch.randint(len(self.heads), ())) if self.training else 0
        return self.heads[chosen](self.body(images))


def masked_depth(model: nn.Module, drop: float = 0.2) -> nn.Module:
    """Add stochastic depth (Huang et al. 2016, arXiv:1603.09382) to a ResNet, with masks.

    In training, the branch of each residual block is multiplied by 0 with probability `drop`, or
    else by 1 / (1 - drop), separately for each image. Every weight is used in every step: where
    the mask is 0, its gradient is 0, and not None.
    """
    for block in model.modules():
        if isinstance(block, BasicBlock):
            block.bn2 = nn.Sequential(block.bn2, StochasticDepth(drop, "row"))
        elif isinstance(block, Bottleneck):
            block.bn3 = nn.Sequential(block.bn3, StochasticDepth(drop, "row"))
    return model.train(model.training)  # including the new layers
