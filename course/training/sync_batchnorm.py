"""BatchNorm whose statistics are those of all ranks together, and each rank's statistics saved.

`torch.nn.SyncBatchNorm` does it on GPUs, and refuses tensors of a CPU. What it sends, and why, is
the same here: one collective a layer in forward, one in backward.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import distributed, nn

from course.runs.files import whole_file
from course.runs.run import FOLDER_VARIABLE

FILE = "batchnorm-{}.pt"  # of a rank, in the run's folder


class _SumOverRanks(torch.autograd.Function):
    """all_reduce that backward goes through: each rank's loss depends on the sum, so its gradient
    is the sum over the ranks of theirs."""

    @staticmethod
    def forward(ctx, values: torch.Tensor) -> torch.Tensor:
        return _summed(values)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return _summed(gradient)


def _summed(values: torch.Tensor) -> torch.Tensor:
    total = values.clone()
    distributed.all_reduce(total)
    return total


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d over the joined batch of all ranks; input and output of shape (N, C, H, W).

    Each rank adds up its numbers and their squares for each channel; one all_reduce of 2 C + 1
    numbers (the count as well: shares may differ) makes both the whole batch's.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalised images; in training, running statistics move towards the joined batch's."""
        if not (self.training and distributed.is_initialized()):
            return super().forward(images)
        values = images.float()  # sums in 16 bits would be no statistics
        count = values.new_tensor([values.numel() / values.shape[1]])
        sums = torch.cat([values.sum((0, 2, 3)), values.square().sum((0, 2, 3)), count])
        sums = _SumOverRanks.apply(sums)
        total = sums[-1].detach()
        mean, square = (sums[:-1] / total).chunk(2)
        variance = square - mean.square()
        self._move_statistics(mean.detach(), variance.detach(), total)
        scale = self.weight * torch.rsqrt(variance.clamp(min=0) + self.eps)
        shift = self.bias - mean * scale
        shape = (1, -1, 1, 1)
        return (values * scale.view(shape) + shift.view(shape)).to(images.dtype)

    @torch.no_grad()
    def _move_statistics(
        self, mean: torch.Tensor, variance: torch.Tensor, total: torch.Tensor
    ) -> None:
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * total / (total - 1), self.momentum)


def convert(model: nn.Module) -> nn.Module:
    """The model with every BatchNorm2d over all ranks: PyTorch's class on GPUs, ours on a CPU.

    Weights, statistics and settings are taken over.
    """
    if next(model.parameters()).device.type != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    _replace(model)
    return model


def _replace(model: nn.Module) -> None:
    for name, child in model.named_children():
        if type(child) is nn.BatchNorm2d:
            new = SyncBatchNorm2d(child.num_features, child.eps, child.momentum)
            new.load_state_dict(child.state_dict())
            setattr(model, name, new.train(child.training))
        else:
            _replace(child)


def save_statistics(model: nn.Module) -> None:
    """Write this rank's running means and variances into the run's folder; `statistics` reads."""
    folder, rank = os.environ.get(FOLDER_VARIABLE), os.environ.get("RANK", "0")
    if folder is None:  # started by hand
        return
    layers = {
        name: (layer.running_mean.cpu(), layer.running_var.cpu())
        for name, layer in model.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    }
    with whole_file(Path(folder) / FILE.format(rank)) as file:
        torch.save(layers, file)
