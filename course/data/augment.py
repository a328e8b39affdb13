"""RandAugment for a whole batch where it lies: each image is changed in ways of its own.

`v2.RandAugment` draws for one image. Given a batch, it changes all its images in the same way. Here
each image draws for itself; those that drew the same are changed together, in one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torchvision.transforms.v2 import functional as F

DRAWS = 2  # changes of an image, one after the other: v2.RandAugment's default
STRENGTH = 9 / 30  # of the strongest change, likewise
SAME_EITHER_WAY = ("identity", "posterize", "solarize", "autocontrast", "equalize")


def _shear(images: torch.Tensor, x: float, y: float) -> torch.Tensor:
    angles = [math.degrees(math.atan(each)) for each in (x, y)]
    return F.affine(images, 0.0, [0, 0], 1.0, angles, center=[0, 0])


def _translate(images: torch.Tensor, x: float, y: float) -> torch.Tensor:
    """By shares of width and height."""
    height, width = images.shape[-2:]
    return F.affine(images, 0.0, [int(x * width), int(y * height)], 1.0, [0.0, 0.0])


# Each changes images, bytes of shape (..., 3, H, W), all alike. `s` is the strength with its sign.
# Ranges: Cubuk et al., "RandAugment" (2020), as torchvision has them.
OPERATIONS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "identity": lambda images, s: images,
    "shear x": lambda images, s: _shear(images, 0.3 * s, 0),
    "shear y": lambda images, s: _shear(images, 0, 0.3 * s),
    "translate x": lambda images, s: _translate(images, 150 / 331 * s, 0),
    "translate y": lambda images, s: _translate(images, 0, 150 / 331 * s),
    "rotate": lambda images, s: F.rotate(images, 30 * s),
    "brightness": lambda images, s: F.adjust_brightness(images, 1 + 0.9 * s),
    "color": lambda images, s: F.adjust_saturation(images, 1 + 0.9 * s),
    "contrast": lambda images, s: F.adjust_contrast(images, 1 + 0.9 * s),
    "sharpness": lambda images, s: F.adjust_sharpness(images, 1 + 0.9 * s),
    "posterize": lambda images, s: F.posterize(images, round(8 - 4 * abs(s))),
    "solarize": lambda images, s: F.solarize(images, 255 * (1 - abs(s))),
    "autocontrast": lambda images, s: F.autocontrast(images),
    "equalize": lambda images, s: F.equalize(images),
}
# What an image may draw: every operation as often, and its sign by chance where it has one.
DRAWN = [
    (name, STRENGTH if name in SAME_EITHER_WAY else sign * STRENGTH)
    for name in OPERATIONS
    for sign in (1, -1)
]
KINDS = list(dict.fromkeys(DRAWN))
KIND_OF = torch.tensor([KINDS.index(each) for each in DRAWN])


def randaugmented(images: torch.Tensor) -> torch.Tensor:
    """RandAugment, each image for itself; all on the images' own device.

    Args:
        images: bytes of shape (N, 3, height, width).

    Returns:
        Images like them, in the same order.
    """
    for _ in range(DRAWS):
        # Drawn on the host, which so knows without asking the device how many images a kind has.
        kinds = KIND_OF[torch.randint(len(DRAWN), (len(images),))]
        order = kinds.argsort()
        counts = kinds.bincount(minlength=len(KINDS)).tolist()
        groups = images[order.to(images.device, non_blocking=True)].split(counts)
        changed = [
            OPERATIONS[name](group, strength)
            for (name, strength), group in zip(KINDS, groups)
            if len(group)
        ]
        images = torch.cat(changed)[order.argsort().to(images.device, non_blocking=True)]
    return images
