"""Images as rows of pixels, which are what matrices multiply: channels last, both are views."""

import torch
import torch.nn.functional as F


def as_rows(images: torch.Tensor) -> torch.Tensor:
    """[n, C, h, w], channels last, as [n h w, C]: a view."""
    return images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])


def as_images(rows: torch.Tensor, n: int, height: int) -> torch.Tensor:
    """[n height w, C] as [n, C, height, w], channels last: a view."""
    return rows.view(n, height, -1, rows.shape[1]).permute(0, 3, 1, 2)


def pad_channels(x: torch.Tensor) -> torch.Tensor:
    """[n, 3, h, w] with a fourth channel of zeros, channels last.

    cuDNN's kernels for a first layer take four channels: given three, it pads on every step.
    """
    return F.pad(x, (0, 0, 0, 0, 0, 1)).contiguous(memory_format=torch.channels_last)
