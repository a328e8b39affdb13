"""Images to look at: a batch, and RandAugment's operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torchvision.transforms import v2

from course.data import augment, default_set, open_image

CLASSES = ("cat", "coffee", "rocket", "flower", "temple", "astronaut", "motorcycle", "coins")


@dataclass(frozen=True)
class Batch:
    """Images as bytes of shape (N, 3, image_px, image_px), and one-hot labels (N, classes)."""

    images: torch.Tensor
    labels: torch.Tensor
    classes: tuple[str, ...] = CLASSES


def sample_batch(count: int = 8, image_px: int = 224) -> Batch:
    """Load up to eight images of the default set, each of a different class."""
    view = v2.Compose([v2.Resize(image_px), v2.CenterCrop(image_px)])
    folders = [default_set.ensure() / "val" / name for name in CLASSES[:count]]
    images = [view(open_image(str(min(folder.glob("[!.]*.jpg"))))) for folder in folders]
    return Batch(torch.stack(images), torch.eye(len(CLASSES))[:count])


def apply_operations(image: torch.Tensor) -> dict[str, torch.Tensor]:
    """Apply each of RandAugment's operations separately to an image, bytes of shape (3, H, W)."""
    return {
        name: operation(image, augment.STRENGTH) for name, operation in augment.OPERATIONS.items()
    }
