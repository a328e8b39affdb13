"""Images to look at: a batch, RandAugment's operations, and CutMix as a loop."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torchvision.transforms import v2

from course.data import augment, default_set, open_image
from course.runs import PROJECT

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


def load_script(script: str) -> SimpleNamespace:
    """Load a training script without running its main, so that you can call its functions.

    Args:
        script: a path, relative to the project's folder.
    """
    return SimpleNamespace(**runpy.run_path(str(PROJECT / script), run_name="script"))


def cutmix_loop(
    images: torch.Tensor, labels: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply CutMix image by image: correct, but slow if every call has an overhead.

    Yun et al., "CutMix" (2019), with a different box for each image.
    """
    mixed, shares = images.clone(), labels.clone()
    height, width = images.shape[2:]
    for i, partner in enumerate(torch.randperm(len(images)).tolist()):
        side = np.sqrt(1 - np.random.beta(alpha, alpha))
        y, x = np.random.uniform(0, height), np.random.uniform(0, width)
        top, bottom = _clip(y, side * height / 2, height)
        left, right = _clip(x, side * width / 2, width)
        mixed[i, :, top:bottom, left:right] = images[partner, :, top:bottom, left:right]
        covered = (bottom - top) * (right - left) / (height * width)
        shares[i] = (1 - covered) * labels[i] + covered * labels[partner]
    return mixed, shares


def _clip(middle: float, half: float, size: int) -> tuple[int, int]:
    return max(round(middle - half), 0), min(round(middle + half), size)
