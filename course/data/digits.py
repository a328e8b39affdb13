"""Handwritten digits: small images that a network learns within seconds."""

from __future__ import annotations

from functools import cache

import torch


@cache
def handwritten_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return scikit-learn's digits: 1,797 images of 64 pixels from 0 to 1, and their labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
