"""Train a small network on few crops with and without mixing, five seeds each.

    python -m research.mixing labs/augmentation/mixing.jsonl    # 15 minutes on one core

2,048 training crops are few enough that the network learns them by heart; the validation crops are
from other parts of the photographs. To fit a CPU, crops are scaled to 16 pixels.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy, one_hot

from course.data import crop_set
from course.data.images import normalised
from course.runs import PROJECT
from research.sweep import command

SEEDS = 5
CLASSES = 16
WAYS = (("none", 0.0), ("mixup", 0.2), ("cutmix", 1.0))  # alpha as for ImageNet
SETTINGS = {"images": 2048, "px": 16, "epochs": 50, "batch": 64, "lr": 0.1}
VAL_IMAGES = 8192


def plan() -> Iterator[dict[str, Any]]:
    """List each way with each seed; an interrupted run has all ways of the first seeds."""
    for seed in range(SEEDS):
        for mix, alpha in WAYS:
            yield {"mix": mix, "alpha": alpha, "seed": seed} | SETTINGS


@cache
def crops(split: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Load the first crops of a split, at half their size, and their labels."""
    part = crop_set.Crops(crop_set.ensure(), split).first(count)
    return avg_pool2d(normalised(part.images), 2), part.labels


def network() -> nn.Module:
    """Create six convolutions, in pairs of 16, 32 and 64 channels."""
    layers: list[nn.Module] = []
    for inputs, channels in ((3, 16), (16, 32), (32, 64)):
        for before in (inputs, channels):
            filters = nn.Conv2d(before, channels, 3, padding=1, bias=False)
            layers += [filters, nn.BatchNorm2d(channels), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def measure(
    mix: str, alpha: float, seed: int, images: int, px: int, epochs: int, batch: int, lr: float
) -> dict[str, float]:
    """Train one network; return its loss and accuracy on unmixed training and validation crops."""
    torch.set_num_threads(1)
    script = str(PROJECT / "solutions/train.py")
    mixing = runpy.run_path(script, run_name="script").get(mix)
    (pixels, labels), validation = crops("train", images), crops("val", VAL_IMAGES)
    torch.manual_seed(seed)
    model = network()
    options = {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": True}
    optimizer = torch.optim.SGD(model.parameters(), lr, **options)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, lr, total_steps=epochs * (images // batch)
    )
    for _ in range(epochs):
        for numbers in torch.randperm(images).split(batch):
            inputs, targets = pixels[numbers], one_hot(labels[numbers], CLASSES).float()
            inputs = torch.where(torch.rand(batch, 1, 1, 1) < 0.5, inputs.flip(3), inputs)
            if mixing:
                inputs, targets = mixing(inputs, targets, alpha)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    results = {"last_loss": loss.item()}
    for split, (inputs, classes) in {"train": (pixels, labels), "val": validation}.items():
        results |= {f"{split}_{name}": value for name, value in score(model, inputs, classes)}
    return results


@torch.no_grad()
def score(model: nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> list[tuple[str, float]]:
    """Return the mean loss, and the share of images whose class has the highest score."""
    scores = model.eval()(pixels)
    right = (scores.argmax(dim=1) == labels).float().mean().item()
    return [("loss", cross_entropy(scores, labels).item()), ("top1", right)]


if __name__ == "__main__":
    command(__doc__, plan(), measure)
