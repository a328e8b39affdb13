"""The algebra in plain PyTorch: any device and number format, ordinary autograd, ordinary DDP.

It is correct and slow: the algebra saves memory traffic, and only a kernel that multiplies,
normalises and adds in one pass over memory gains from that.
"""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models.resnet import Bottleneck

from fast_resnet.formulas import LinearBatchNormAddReLU, as_images, as_rows


class AlgebraBottleneck(Bottleneck):
    """torchvision's block; in training, it keeps no output of a 1x1 convolution that widens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute torchvision's block for x [n, C, h, w]; in evaluation, run its own code."""
        shortcut = self.downsample
        if not (self.bn3.training and (shortcut is None or shortcut[1].training)):
            return super().forward(x)
        z = self.relu(self.bn1(self.conv1(x)))
        z = self.relu(self.bn2(self.conv2(z)))
        identity = x if shortcut is None else linear_norm(x, *shortcut)
        return linear_norm(z, self.conv3, self.bn3, identity)


def linear_norm(
    x: torch.Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, identity: torch.Tensor | None = None
) -> torch.Tensor:
    """Return relu(norm(conv(x)) + identity), or norm(conv(x)) without identity; 1x1 convolution."""
    down, right = conv.stride
    x = _as_under_autocast(x)[:, :, ::down, ::right]
    rows = as_rows(x)
    out, mean, variance = LinearBatchNormAddReLU.apply(
        rows,
        as_rows(conv.weight),  # [N, K], and its gradient comes back channels last
        norm.weight,
        norm.bias,
        None if identity is None else as_rows(identity),
        norm.eps,
    )
    _move_statistics(norm, mean, variance, len(rows))
    return as_images(out, len(x), x.shape[2])


def _as_under_autocast(x: torch.Tensor) -> torch.Tensor:
    """Convert the input to the type that a convolution would use under autocast."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


@torch.no_grad()
def _move_statistics(
    norm: nn.BatchNorm2d, mean: torch.Tensor, variance: torch.Tensor, count: int
) -> None:
    norm.num_batches_tracked += 1
    share = norm.momentum or 1 / norm.num_batches_tracked  # None: the mean of all batches
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    unbiased = variance * (count / (count - 1))
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), share)


def convert(model: nn.Module) -> nn.Module:
    """Replace the network's bottlenecks by this module's, with the same weights, in place."""
    for block in model.modules():
        if type(block) is Bottleneck:
            block.__class__ = AlgebraBottleneck
    return model
