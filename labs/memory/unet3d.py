"""3D U-Net: classifies each voxel of a volume.

Çiçek et al. 2016 (arXiv:1606.06650), with the widths and depth of MLPerf's training benchmark for
the kidney tumours of KiTS19, which give the published 31.2 million parameters.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

VOXELS = 128  # per side
CLASSES = 3  # background, kidney, tumour
WIDTHS = (32, 64, 128, 256, 320, 320)  # channels, from the full volume down to 4 × 4 × 4 cells


class UNet3D(nn.Module):
    """Contract a volume to a few cells and expand it again, with skip connections.

    Takes volumes (N, 1, D, H, W) whose sides are multiples of 2 to the power of `len(widths) - 1`;
    returns scores (N, CLASSES, D, H, W). With `dims=2` it is the same network for images.
    """

    def __init__(self, widths: tuple[int, ...] = WIDTHS, dims: int = 3) -> None:
        super().__init__()
        pairs = list(zip(widths, widths[1:]))
        block = partial(_block, dims)
        grow = getattr(nn, f"ConvTranspose{dims}d")
        self.first = block(1, widths[0])
        self.down = nn.ModuleList(block(above, below, stride=2) for above, below in pairs)
        self.grow = nn.ModuleList(
            grow(below, above, 2, stride=2) for above, below in reversed(pairs)
        )
        self.up = nn.ModuleList(block(2 * above, above) for above, _ in reversed(pairs))
        self.last = getattr(nn, f"Conv{dims}d")(widths[0], CLASSES, 1)

    def forward(self, volumes: torch.Tensor) -> torch.Tensor:
        levels = [self.first(volumes)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for grow, up in zip(self.grow, self.up):
            x = up(torch.cat([grow(x), levels.pop()], 1))
        return self.last(x)


def _block(dims: int, inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Create two convolutions, normalised per volume: a batch of two is too small."""
    convolution, norm = getattr(nn, f"Conv{dims}d"), getattr(nn, f"InstanceNorm{dims}d")
    layers: list[nn.Module] = []
    for channels, step in ((inputs, stride), (outputs, 1)):
        layers += [
            convolution(channels, outputs, 3, stride=step, padding=1, bias=False),
            norm(outputs, affine=True),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute the mean of cross-entropy and the Dice loss without background.

    Args:
        scores: (N, classes, D, H, W).
        labels: (N, D, H, W).
    """
    scores = scores.float()
    shares = scores.softmax(1)
    truth = one_hot(labels, scores.shape[1]).movedim(-1, 1).to(shares.dtype)
    space = (2, 3, 4)
    overlap, sizes = (shares * truth).sum(space), (shares + truth).sum(space)
    dice = (2 * overlap + 1e-6) / (sizes + 1e-6)
    return (cross_entropy(scores, labels) + 1 - dice[:, 1:].mean()) / 2
