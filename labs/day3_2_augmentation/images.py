"""Images to look at: a batch, what changes make of it, and mixtures as they are first written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torchvision.transforms.v2 import functional as F

from course.data import default_set
from course.data.augment import OPERATIONS, STRENGTH
from course.data.images import open_image
from course.runs.run import PROJECT

SHOWN = ("cat", "coffee", "rocket", "flower", "temple", "astronaut", "motorcycle", "coins")


@dataclass(frozen=True)
class Batch:
    """Images to look at.

    images: bytes of shape (N, 3, image_px, image_px). labels: (N, classes), 1 at each one's class.
    classes: their names.
    """

    images: torch.Tensor
    labels: torch.Tensor
    classes: tuple[str, ...]


def batch(count: int = 8, image_px: int = 224) -> Batch:
    """So many images of the default set, of one class after the other."""
    root = default_set.ensure()
    files = [next(iter(sorted((root / "val" / name).glob("[!.]*.jpg")))) for name in SHOWN]
    images = [_square(open_image(str(path)), image_px) for path in files]
    rows = [number % len(SHOWN) for number in range(count)]
    return Batch(torch.stack([images[row] for row in rows]), torch.eye(len(SHOWN))[rows], SHOWN)


def _square(image: torch.Tensor, image_px: int) -> torch.Tensor:
    return F.center_crop(F.resize(image, [image_px], antialias=True), [image_px, image_px])


def changed(image: torch.Tensor) -> dict[str, torch.Tensor]:
    """An image, bytes of shape (3, H, W), after each of RandAugment's operations alone."""
    return {name: change(image, STRENGTH) for name, change in OPERATIONS.items()}


def script_functions(script: str) -> ModuleType:
    """A training script as a module, so that a notebook may call what is written in it.

    Its main does not run.

    Args:
        script: a path, in the project where it is not absolute.
    """
    path = PROJECT / Path(script)
    module = ModuleType("script")
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module


def one_by_one(
    images: torch.Tensor, labels: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """CutMix with a loop, as it is first written: right, and slow where each call has its price.

    Yun et al., "CutMix" (2019), with a box of its own for each image.
    """
    other = torch.randperm(len(images)).tolist()
    mixed, shares = images.clone(), labels.clone()
    height, width = images.shape[2:]
    for i, partner in enumerate(other):
        side = np.sqrt(1 - np.random.beta(alpha, alpha))
        y, x = np.random.uniform(0, height), np.random.uniform(0, width)
        top, bottom = _clipped(y, side * height / 2, height)
        left, right = _clipped(x, side * width / 2, width)
        mixed[i, :, top:bottom, left:right] = images[partner, :, top:bottom, left:right]
        covered = (bottom - top) * (right - left) / (height * width)
        shares[i] = (1 - covered) * labels[i] + covered * labels[partner]
    return mixed, shares


def _clipped(middle: float, half: float, size: int) -> tuple[int, int]:
    return max(round(middle - half), 0), min(round(middle + half), size)
