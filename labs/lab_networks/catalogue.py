"""The three networks of the benchmark: each with its batch, its loss, and its images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, RandomSampler

from course.config import Config
from course.data import loader
from course.training import models
from labs.lab_networks import boxes, ssd, unet3d, volumes

Batch = tuple[torch.Tensor, Any]
EPOCH = 1000  # batches of a set that is small
WITH_OBJECT = 0.002  # of default boxes, as in COCO's images


@dataclass(frozen=True)
class Network:
    """What a benchmark needs to know of a network."""

    words: str
    build: Callable[[], nn.Module]
    loss: Callable[[Any, Any], torch.Tensor]
    px: int  # a side of what it sees
    batch_size: int  # as the published benchmark has it
    dims: int  # of what it sees: 2 an image, 3 a volume
    made: Callable[[int, int, torch.Generator], Batch]  # batch, side: random numbers
    loaded: Callable[[int, int, int], DataLoader]  # batch, side, workers: photographs
    lr: float = 0.002  # with which the loss of random images falls
    fixed: bool = False  # its side may not be another
    multiple: int = 1  # its side is a multiple of it, twice it at least


def get(name: str) -> Network:
    """One of NETWORKS.

    Raises:
        ValueError: no such network; the message lists those there are.
    """
    if name not in NETWORKS:
        raise ValueError(f"no network {name!r}: choose {', '.join(NETWORKS)}")
    return NETWORKS[name]


def batches(loaded: DataLoader) -> Iterator[Batch]:
    """Batches without an end: what is there comes again and again, in another order."""
    while True:
        yield from loaded


def _images(batch: int, px: int, draw: torch.Generator) -> Batch:
    labels = torch.randint(1000, (batch,), generator=draw)
    return torch.randn(batch, 3, px, px, generator=draw), labels


def _objects(batch: int, px: int, draw: torch.Generator) -> Batch:
    count = sum(side * side * each for side, each in zip(ssd.GRIDS, (4, 6, 6, 6, 4, 4)))
    kinds = torch.randint(1, ssd.CLASSES, (batch, count), generator=draw)
    there = torch.rand(batch, count, generator=draw) < WITH_OBJECT
    places = torch.randn(batch, count, 4, generator=draw)
    return torch.randn(batch, 3, px, px, generator=draw), (places, kinds * there)


def _voxels(batch: int, px: int, draw: torch.Generator) -> Batch:
    kinds = torch.randint(unet3d.CLASSES, (batch, *[px] * 3), generator=draw)
    return torch.randn(batch, 1, px, px, px, generator=draw), kinds


def _photographs(batch: int, px: int, workers: int) -> DataLoader:
    cfg = Config(data="default", image_px=px, batch_size=batch, val_steps=0, uint8=False)
    loaded, _ = loader.loaders(loader.image_sets(cfg), cfg, torch.device("cpu"), **_how(workers))
    return loaded


def _with_boxes(batch: int, px: int, workers: int) -> DataLoader:
    return _long(boxes.Boxes(boxes.ensure()), batch, workers)


def _of_volumes(batch: int, px: int, workers: int) -> DataLoader:
    return _long(volumes.Volumes(volumes.ensure(), px), batch, workers)


def _long(found: Dataset, batch: int, workers: int) -> DataLoader:
    """Batches of a small set: it is shuffled anew and again, and workers need not start again."""
    order = RandomSampler(found, num_samples=batch * EPOCH)
    return DataLoader(found, batch, sampler=order, **_how(workers))


def _how(workers: int) -> dict[str, Any]:
    pinned = torch.cuda.is_available()
    return {"num_workers": workers, "pin_memory": pinned, "persistent_workers": workers > 0}


def _to_classify(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(scores.float(), labels)


NETWORKS = {
    "ssd300": Network(
        words="SSD300, finds objects",
        build=ssd.SSD300,
        loss=ssd.loss,
        px=ssd.PX,
        batch_size=32,
        dims=2,
        made=_objects,
        loaded=_with_boxes,
        lr=0.00002,
        fixed=True,
    ),
    "unet3d": Network(
        words="3D U-Net, names each voxel",
        build=unet3d.UNet3D,
        loss=unet3d.loss,
        px=unet3d.VOXELS,
        batch_size=2,
        dims=3,
        multiple=2 ** (len(unet3d.WIDTHS) - 1),
        made=_voxels,
        loaded=_of_volumes,
    ),
    "resnet50": Network(
        words="ResNet-50, names the image",
        build=lambda: models.create("resnet50", 1000),
        loss=_to_classify,
        px=224,
        batch_size=64,
        dims=2,
        made=_images,
        loaded=_photographs,
    ),
}
