"""BatchNorm over the images of all ranks.

`torch.nn.SyncBatchNorm` works on GPUs only. This module's class for CPUs sends the same: one
collective per layer in forward, one in backward.
"""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.distributed.nn.functional import all_reduce


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d over the joint batch of all ranks; input and output of shape (N, C, H, W).

    Each rank adds up its values and their squares per channel. One all_reduce of 2 C + 1 numbers
    (the count, too, because shares may differ) gives the sums of the joint batch.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not (self.training and distributed.is_initialized()):
            return super().forward(images)
        values = images.float()  # sums in 16 bits would be too coarse
        count = values.new_tensor([values.numel() / values.shape[1]])
        sums = torch.cat([values.sum((0, 2, 3)), values.square().sum((0, 2, 3)), count])
        sums = all_reduce(sums)  # with gradients: those of all ranks add up
        total = sums[-1].detach()
        mean, square = (sums[:-1] / total).chunk(2)
        variance = square - mean.square()
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * total / (total - 1), self.momentum)
        scale = self.weight * torch.rsqrt(variance.clamp(min=0) + self.eps)
        shift = self.bias - mean * scale
        shape = (1, -1, 1, 1)
        return (values * scale.view(shape) + shift.view(shape)).to(images.dtype)


def convert(model: nn.Module) -> nn.Module:
    """Make every BatchNorm2d use all ranks: PyTorch's class on GPUs, this module's on a CPU.

    Weights, statistics and settings are kept.
    """
    if next(model.parameters()).device.type != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in [*model.modules()]:
        for name, child in module.named_children():
            if type(child) is nn.BatchNorm2d:
                layer = SyncBatchNorm2d(child.num_features, child.eps, child.momentum)
                layer.load_state_dict(child.state_dict())
                setattr(module, name, layer.train(child.training))
    return model
