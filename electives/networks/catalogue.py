"""The three networks of the benchmark, each with its loss and its batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course.training import models
from electives.networks import ssd
from labs.memory import unet3d

Batch = tuple[torch.Tensor, Any]
OBJECT_SHARE = 0.002  # of default boxes, as in COCO's images


@dataclass(frozen=True)
class Network:
    """A network, with everything that the benchmark needs of it."""

    build: Callable[[], nn.Module]
    loss: Callable[[Any, Any], torch.Tensor]
    px: int  # per side of its input
    batch_size: int  # of the published benchmark
    dims: int  # of its input: 2 for images, 3 for volumes
    random_batch: Callable[[int, int, torch.Generator], Batch]  # takes batch, side, generator
    lr: float = 0.002  # with which the loss of random images falls


def get(name: str) -> Network:
    """Return one of NETWORKS.

    Raises:
        ValueError: an unknown network.
    """
    if name not in NETWORKS:
        raise ValueError(f"network={name!r}: choose {', '.join(NETWORKS)}")
    return NETWORKS[name]


def _random_images(batch: int, px: int, generator: torch.Generator) -> Batch:
    labels = torch.randint(1000, (batch,), generator=generator)
    return torch.randn(batch, 3, px, px, generator=generator), labels


def _random_objects(batch: int, px: int, generator: torch.Generator) -> Batch:
    kinds = torch.randint(1, ssd.CLASSES, (batch, ssd.BOXES), generator=generator)
    has_object = torch.rand(batch, ssd.BOXES, generator=generator) < OBJECT_SHARE
    offsets = torch.randn(batch, ssd.BOXES, 4, generator=generator)
    return torch.randn(batch, 3, px, px, generator=generator), (offsets, kinds * has_object)


def _random_volumes(batch: int, px: int, generator: torch.Generator) -> Batch:
    kinds = torch.randint(unet3d.CLASSES, (batch, px, px, px), generator=generator)
    return torch.randn(batch, 1, px, px, px, generator=generator), kinds


NETWORKS = {
    "ssd300": Network(
        build=ssd.SSD300,
        loss=ssd.loss,
        px=ssd.PX,
        batch_size=32,
        dims=2,
        random_batch=_random_objects,
        lr=0.00002,
    ),
    "unet3d": Network(
        build=unet3d.UNet3D,
        loss=unet3d.loss,
        px=unet3d.VOXELS,
        batch_size=2,
        dims=3,
        random_batch=_random_volumes,
    ),
    "resnet50": Network(
        build=lambda: models.create("resnet50", 1000),
        loss=lambda scores, labels: cross_entropy(scores.float(), labels),
        px=224,
        batch_size=64,
        dims=2,
        random_batch=_random_images,
    ),
}
