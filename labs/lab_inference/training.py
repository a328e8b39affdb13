"""A small network that has learned the crops, in seconds: what the lab answers with."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from course.data import crop_set
from course.data.crop_set import Crops
from course.data.loader import normalised
from course.training import models, precision

NETWORK, LR = "resnet8_patches", 0.2
STEPS, BATCH = 256, 64
AT_ONCE = 256  # images


@cache
def crops(split: str) -> Crops:
    """The crops of "train" or "val", made on first use."""
    return Crops(crop_set.ensure(), split)


def images_of(split: str, count: int, first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Crops of a split, normalised: images (count, 3, 32, 32), and labels."""
    some, chosen = crops(split), slice(first, first + count)
    return normalised(some.images[chosen]), some.labels[chosen]


def train(steps: int = STEPS, batch: int = BATCH, seed: int = 0) -> nn.Module:
    """A network of seven convolutions that has seen steps · batch crops, in evaluation."""
    torch.manual_seed(seed)
    device, some = torch.device("cpu"), crops("train")
    model = models.create(NETWORK, len(some.classes)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=LR, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=steps)
    faster = "bf16" if precision.has_units(device, "bf16") else "fp32"
    for step in range(steps):
        first = step * batch % (len(some) - batch)
        images, labels = images_of("train", batch, first)
        with precision.autocast(device, faster):
            scores = model(images.to(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.to(memory_format=torch.contiguous_format).eval()


@torch.inference_mode()
def top1(answer: nn.Module, images: int = 2048, at_once: int = AT_ONCE) -> float:
    """The share of validation crops that are answered right, so many at once.

    Args:
        answer: what gives scores for normalised images: a network, in the mode in which it is.
    """
    right = 0
    for first in range(0, images, at_once):
        some, labels = images_of("val", min(at_once, images - first), first)
        right += int((torch.as_tensor(answer(some)).argmax(dim=1) == labels).sum())
    return right / images
