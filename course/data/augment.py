"""RandAugment for a complete batch on its device, with separate random changes for each image.

`v2.RandAugment` changes all images of a batch in the same way. Here, each image draws its own
changes, and images that drew the same change are processed in one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torchvision.transforms.v2 import functional as F

DRAWS = 2  # changes per image, one after another: v2.RandAugment's default
STRENGTH = 9 / 30  # of the strongest change: also its default
UNSIGNED = ("identity", "posterize", "solarize", "autocontrast", "equalize")


def _shear(images: torch.Tensor, x: float, y: float) -> torch.Tensor:
    angles = [math.degrees(math.atan(shear)) for shear in (x, y)]
    return F.affine(images, 0.0, [0, 0], 1.0, angles, center=[0, 0])


def _translate(images: torch.Tensor, x: float, y: float) -> torch.Tensor:
    """Translate by fractions of width and height."""
    height, width = images.shape[-2:]
    return F.affine(images, 0.0, [int(x * width), int(y * height)], 1.0, [0.0, 0.0])


# Each changes images, bytes of shape (..., 3, H, W), in the same way. `s` is the signed strength.
# Ranges: Cubuk et al., "RandAugment" (2020), as in torchvision.
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
# The equally likely changes of an image: each operation, with a random sign if it has one.
CHANGES = [
    (name, STRENGTH if name in UNSIGNED else sign * STRENGTH)
    for name in OPERATIONS
    for sign in (1, -1)
]
KINDS = list(dict.fromkeys(CHANGES))
KIND_OF = torch.tensor([KINDS.index(change) for change in CHANGES])


def random_erased(images: torch.Tensor, probability: float) -> torch.Tensor:
    """Erase a box of some images, in place, on their device.

    Args:
        images: normalised, of shape (N, 3, height, width); 0 is the mean colour.
    """
    from timm.data.random_erasing import RandomErasing  # here: importing timm takes two seconds

    return RandomErasing(probability, mode="const", device=images.device)(images)


def randaugmented(images: torch.Tensor) -> torch.Tensor:
    """Apply RandAugment to each image, on the images' device.

    Args:
        images: bytes of shape (N, 3, height, width).
    """
    for _ in range(DRAWS):
        # Drawn on the host, so that the sizes of the groups are known without waiting for a GPU.
        kinds = KIND_OF[torch.randint(len(CHANGES), (len(images),))]
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
