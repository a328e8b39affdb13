"""The lab's small network, trained in seconds on the crops."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from course.data import crop_set, normalised
from course.training import autocast, has_units, models

NETWORK, LR = "resnet8_patches", 0.2
STEPS, BATCH = 256, 64


@cache
def _crops(split: str) -> crop_set.Crops:
    return crop_set.Crops(crop_set.ensure(), split)


def load_crops(split: str, count: int, first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Load crops of "train" or "val": normalised images (count, 3, 32, 32), and labels."""
    crops, selected = _crops(split), slice(first, first + count)
    return normalised(crops.images[selected]), crops.labels[selected]


def train_network() -> nn.Module:
    """Train a network of seven convolutions on STEPS · BATCH crops; return it in evaluation."""
    torch.manual_seed(0)
    device, crops = torch.device("cpu"), _crops("train")
    model = models.create(NETWORK, len(crops.classes)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=LR, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=STEPS)
    fastest = "bf16" if has_units(device, "bf16") else "fp32"
    for step in range(STEPS):
        images, labels = load_crops("train", BATCH, step * BATCH % (len(crops) - BATCH))
        with autocast(device, fastest):
            scores = model(images.to(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.to(memory_format=torch.contiguous_format).eval()
