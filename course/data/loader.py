"""One loader for synthetic tensors, the default set and ImageNet."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import distributed
from torch.utils.data import DataLoader, Sampler, Subset
from torchvision import datasets
from torchvision.transforms import v2

from course.config import Config
from course.data import default_set
from course.data.default_set import DataError
from course.runs import failures

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's channels, in 0…1
SYNTHETIC_CLASSES = 1000
NOTED = 64
_NORMALISE = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
_made: list[weakref.ref[DataLoader]] = []  # or its workers would stay
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class ImageSets:
    """The images to train on, those to validate on, and how many classes they have."""

    train: Sized
    val: Sized
    classes: int


def image_sets(cfg: Config) -> ImageSets:
    """The images that a config names; nothing is decoded yet.

    Raises:
        DataError: a folder or file that cannot be used; the message names it.
    """
    if cfg.data == "synthetic":  # as long as a sampler needs it; `loaders` knows what to do
        images = range(cfg.batch_size * max(cfg.steps, cfg.val_steps))
        return ImageSets(images, images, SYNTHETIC_CLASSES)
    root = default_set.ensure() if cfg.data == "default" else Path(cfg.data_root).expanduser()
    train, val = _folder(root, "train", train_view(cfg)), _folder(root, "val", val_view(cfg))
    if train.classes != val.classes:
        odd = sorted(set(train.classes) ^ set(val.classes))
        raise DataError(f"train/ and val/ in {root} differ in their class folders: {odd[:5]}")
    _check_enough(len(train), cfg, root)
    return ImageSets(train, _mixed(val, cfg), len(train.classes))


def _check_enough(images: int, cfg: Config, root: Path) -> None:
    if images < cfg.batch_size:
        raise DataError(
            f"batch_size={cfg.batch_size} is more than the {images} training images in "
            f'{root}: use a smaller batch, or data="synthetic" to measure speed and memory'
        )
    batches = min(cfg.steps, images // cfg.batch_size) * cfg.epochs
    if batches <= cfg.warmup_steps:
        raise DataError(
            f"{images} images in {root} make {batches} batches of {cfg.batch_size} in "
            f"{cfg.epochs} epochs, and warmup_steps={cfg.warmup_steps} leaves none to measure: "
            f'raise epochs, lower batch_size, or use data="synthetic"'
        )


def loaders(
    sets: ImageSets,
    cfg: Config,
    device: torch.device,
    share: int | None = None,
    *,
    sampler: Sampler | None = None,
    val_sampler: Iterable[int] | None = None,
    **loading: Any,
) -> tuple[Batches, Batches]:
    """Training batches and validation batches.

    A batch is (images, labels): float32 of shape (N, 3, image_px, image_px), normalised, or with
    `cfg.uint8` bytes, which `normalised` turns into that; and int64 of shape (N,). Files come in
    host memory; synthetic batches already lie on `device`, so that they cost nothing and the
    network's own speed shows.

    Args:
        share: images of a batch that this process loads; None: all of `cfg.batch_size`.
        sampler: which training images, in which order; None: all, shuffled by `cfg.seed`.
        val_sampler: which validation images; None: all.
        loading: further arguments of PyTorch's DataLoader.
    """
    share = share or cfg.batch_size
    if cfg.data == "synthetic":
        batches = Synthetic(cfg, device, share)
        return batches, batches
    train = _training_loader(sets, cfg, share, sampler, loading)
    taken = None if val_sampler is None else Noted(val_sampler)
    val = DataLoader(sets.val, share, sampler=taken, **loading)
    for batches in (train, val):
        failures.give_up_in_time(batches)
    _made[:] = [weakref.ref(val)]
    return train, val


def made_last() -> DataLoader | None:
    """The validation batches that `loaders` made last in this process, for the record."""
    return _made[-1]() if _made else None


def _training_loader(
    sets: ImageSets, cfg: Config, share: int, sampler: Sampler | None, loading: dict[str, Any]
) -> DataLoader:
    order = torch.Generator().manual_seed(cfg.seed)
    if sampler is not None:
        sampler = Noted(sampler)
        if distributed.is_available() and distributed.is_initialized():  # workers draw from it
            order.manual_seed(cfg.seed + distributed.get_rank())
    return DataLoader(
        sets.train,
        share,
        sampler=sampler,
        shuffle=sampler is None,
        drop_last=cfg.drop_last,
        generator=order,
        **loading,
    )


def train_view(cfg: Config) -> v2.Transform:
    """Random crop and flip: how a file becomes a training image."""
    crop = v2.RandomResizedCrop(cfg.image_px)
    return v2.Compose([crop, v2.RandomHorizontalFlip(), *_to_tensor(cfg)])


def val_view(cfg: Config) -> v2.Transform:
    """Resize, then the centre crop, as ImageNet results are reported."""
    resized = round(cfg.image_px * 256 / 224)
    return v2.Compose([v2.Resize(resized), v2.CenterCrop(cfg.image_px), *_to_tensor(cfg)])


def _to_tensor(cfg: Config) -> list[v2.Transform]:
    return [v2.ToImage()] if cfg.uint8 else [v2.ToImage(), *_NORMALISE]


def normalised(images: torch.Tensor) -> torch.Tensor:
    """Images as the network wants them; those that came as bytes are turned where they lie."""
    if images.dtype != torch.uint8:
        return images
    for each in _NORMALISE:
        images = each(images)
    return images


def _mixed(val: datasets.ImageFolder, cfg: Config) -> Subset:
    # Files come class after class: the first batches alone would show one or two classes.
    order = torch.randperm(len(val), generator=torch.Generator().manual_seed(cfg.seed))
    return Subset(val, order[: cfg.val_images or None].tolist())


class Noted(Sampler):
    """A sampler that tells, since ranks must share the images.

    `taken` has the first NOTED images of each epoch, in order; `low` those of its images that are
    numbered below NOTED: two ranks' first ones may have nothing in common by chance.
    """

    def __init__(self, sampler: Iterable[int]) -> None:
        self.sampler, self.taken, self.low = sampler, [], []

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        order = [int(image) for image in self.sampler]  # of a tensor, too
        self.taken.append(order[:NOTED])
        self.low.append(sorted(image for image in order if image < NOTED))
        yield from order


class Synthetic:
    """The same random batch, again and again: no file is read and no pixel decoded."""

    def __init__(self, cfg: Config, device: torch.device, share: int | None = None) -> None:
        random = torch.Generator().manual_seed(cfg.seed)
        shape = (share or cfg.batch_size, 3, cfg.image_px, cfg.image_px)
        self.images = torch.randn(shape, generator=random).to(device)
        labels = torch.randint(SYNTHETIC_CLASSES, shape[:1], generator=random)
        self.labels = labels.to(device)
        self.length = max(cfg.steps, cfg.val_steps)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(self.length):
            yield self.images, self.labels


def open_image(path: str) -> Image.Image:
    """The image in RGB. Raises DataError naming a file that is truncated or no image."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except OSError as error:
        raise DataError(
            f"{path} cannot be decoded ({error}): copy this file again, or take it out"
        ) from error


def _folder(root: Path, split: str, view: v2.Transform) -> datasets.ImageFolder:
    folder = root / split
    if not folder.is_dir():
        raise DataError(
            f"no folder {folder}: data_root must hold train/ and val/, each with one folder "
            f"a class, as ImageNet has it"
        )
    try:
        return datasets.ImageFolder(str(folder), view, loader=open_image)
    except FileNotFoundError as error:
        # torchvision's message names the classes that hold no image, or says there are none.
        raise DataError(f"{folder} is incomplete: {error}") from error
