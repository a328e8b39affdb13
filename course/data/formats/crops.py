"""Random crops of a whole batch of images of many sizes, resized by one call: at best on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn.functional import interpolate

AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # of a training crop, as RandomResizedCrop has them
TRIES = 10
ROW = 256  # columns that a program of the kernel has at least; Triton wants a power of two


def random_boxes(sizes: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """A part of each image, drawn as torchvision's `RandomResizedCrop` draws it.

    Args:
        sizes: height and width of each image; int64 of shape (N, 2).

    Returns:
        top, left, height, width in pixels; int64 of shape (N, 4).
    """
    count, (height, width) = len(sizes), sizes.double().T
    area = torch.empty(TRIES, count, dtype=torch.double).uniform_(*AREA, generator=random)
    aspect = torch.empty_like(area).uniform_(*map(math.log, ASPECT), generator=random).exp()
    wide = (height * width * area * aspect).sqrt().round()
    high = (height * width * area / aspect).sqrt().round()
    fits = (wide >= 1) & (wide <= width) & (high >= 1) & (high <= height)
    first = fits.int().argmax(dim=0), torch.arange(count)
    # Where no try fits, the largest part in the middle that has a valid aspect.
    found, middle = fits.any(dim=0), (width / height).clamp(*ASPECT)
    wide = torch.where(found, wide[first], (height * middle).round().minimum(width))
    high = torch.where(found, high[first], (width / middle).round().minimum(height))
    rest = torch.stack([height - high, width - wide]) + 1
    drawn = (torch.rand(2, count, dtype=torch.double, generator=random) * rest).floor()
    top, left = torch.where(found, drawn, ((rest - 1) / 2).floor())
    return torch.stack([top, left, high, wide], dim=1).long()


def middle_boxes(sizes: torch.Tensor, part: float) -> torch.Tensor:
    """The square in the middle of each image, as large as `part` of its shorter side."""
    side = (sizes.amin(dim=1) * part).round().long()
    corners = (sizes - side[:, None]) // 2
    return torch.stack([*corners.T, side, side], dim=1)


def cropped(
    images: Sequence[torch.Tensor], boxes: torch.Tensor, flips: torch.Tensor, image_px: int
) -> torch.Tensor:
    """A box of each image, resized to image_px × image_px with antialiasing; some are flipped.

    On CUDA it is one kernel for the batch, elsewhere PyTorch's `interpolate` image by image: both
    compute the same, up to one level of 255.

    Args:
        images: bytes of shape (3, height, width), all on one device.
        boxes: top, left, height, width; int64 of shape (N, 4) in host memory.
        flips: which are turned from left to right; bool of shape (N,) in host memory.

    Returns:
        Bytes of shape (N, 3, image_px, image_px), stored channels last on CUDA.
    """
    if images[0].device.type == "cuda":
        return _in_one_kernel(images, boxes, flips, image_px)
    made = []
    for image, (top, left, height, width), flip in zip(images, boxes.tolist(), flips.tolist()):
        part = image[None, :, top : top + height, left : left + width]
        part = interpolate(part, [image_px] * 2, mode="bilinear", antialias=True)[0]
        made.append(part.flip(-1) if flip else part)
    return torch.stack(made)


def _in_one_kernel(
    images: Sequence[torch.Tensor], boxes: torch.Tensor, flips: torch.Tensor, image_px: int
) -> torch.Tensor:
    from course.data.formats.kernel import resize  # Triton is there where CUDA is

    device, count = images[0].device, len(images)
    images = [image.contiguous() for image in images]
    table = torch.tensor([[image.data_ptr(), *image.shape[1:]] for image in images])
    table = torch.cat([table, boxes, flips[:, None]], dim=1)  # all that the kernel must know
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)
    shape = (count, 3, image_px, image_px)
    out = torch.empty(shape, dtype=torch.uint8, device=device, memory_format=torch.channels_last)
    columns = max(ROW, 1 << (image_px - 1).bit_length())
    resize[(count, image_px)](table, out, image_px, COLUMNS=columns)
    return out
