"""3D U-Net: which of three kinds is each voxel of a volume?

Çiçek et al. 2016 (arXiv:1606.06650), in the widths and depth in which MLPerf's training benchmark
has it for the kidney tumours of KiTS19; those have the 31.2 million parameters that are asked for.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

VOXELS = 128  # a side
CLASSES = 3  # background, kidney, tumour
WIDTHS = (32, 64, 128, 256, 320, 320)  # channels, from the whole volume down to 4 × 4 × 4 cells


class UNet3D(nn.Module):
    """Down to a few cells and up again, with what was seen on the way down at hand on the way up.

    Takes volumes (N, 1, D, H, W) whose sides are multiples of 2 to the power of `len(widths) - 1`;
    gives scores (N, classes, D, H, W).
    """

    def __init__(self, classes: int = CLASSES, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__()
        pairs = list(zip(widths, widths[1:]))
        self.first = _twice(1, widths[0])
        self.down = nn.ModuleList(_twice(above, below, stride=2) for above, below in pairs)
        self.grow = nn.ModuleList(
            nn.ConvTranspose3d(below, above, 2, stride=2) for above, below in reversed(pairs)
        )
        self.up = nn.ModuleList(_twice(2 * above, above) for above, _ in reversed(pairs))
        self.last = nn.Conv3d(widths[0], classes, 1)

    def forward(self, volumes: torch.Tensor) -> torch.Tensor:
        """Scores of each kind, for each voxel."""
        levels = [self.first(volumes)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for grow, up in zip(self.grow, self.up):
            x = up(torch.cat([grow(x), levels.pop()], 1))
        return self.last(x)


def _twice(channels: int, out: int, stride: int = 1) -> nn.Sequential:
    """Two convolutions, each normalised by the volume's own mean: two of them are no batch."""
    parts: list[nn.Module] = []
    for given, step in ((channels, stride), (out, 1)):
        parts += [
            nn.Conv3d(given, out, 3, stride=step, padding=1, bias=False),
            nn.InstanceNorm3d(out, affine=True),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*parts)


def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Half cross-entropy, half what two regions do not share (Dice), background left out.

    Args:
        scores: (N, classes, D, H, W); labels: (N, D, H, W).
    """
    scores = scores.float()
    shares = scores.softmax(1)
    right = one_hot(labels, scores.shape[1]).movedim(-1, 1).to(shares.dtype)
    places = (2, 3, 4)
    both, sizes = (shares * right).sum(places), (shares + right).sum(places)
    dice = (2 * both + 1e-6) / (sizes + 1e-6)
    return (cross_entropy(scores, labels) + 1 - dice[:, 1:].mean()) / 2
