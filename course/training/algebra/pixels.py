"""Images as rows of pixels, which are what matrices multiply: channels last, both are views."""

import torch


def as_rows(images: torch.Tensor) -> torch.Tensor:
    """[n, C, h, w], channels last, as [n h w, C]: a view."""
    return images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])


def as_images(rows: torch.Tensor, n: int, height: int) -> torch.Tensor:
    """[n height w, C] as [n, C, height, w], channels last: a view."""
    return rows.view(n, height, -1, rows.shape[1]).permute(0, 3, 1, 2)
