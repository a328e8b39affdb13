"""One loader for synthetic tensors, the default set and ImageNet."""

from __future__ import annotations

import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, Subset
from torchvision.transforms import v2

from course.config import Config
from course.data import crop_set, default_set
from course.data.augment import randaugmented as randaugmented  # a script imports it from here
from course.data.crop_set import Crops, OnDevice
from course.data.default_set import DataError
from course.data.formats import convert, on_device, shards
from course.data.formats.on_device import Decoded, Encoded
from course.data.formats.raw import Raw
from course.data.images import Files, epoch_px, train_view, val_view
from course.data.images import normalised as normalised  # and this
from course.runs import failures

SYNTHETIC_CLASSES = 1000
NOTED = 64
NICENESS = 10  # of loading processes: see `_make_way`
_made: list[weakref.ref[DataLoader]] = []  # or its workers would stay
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class ImageSets:
    """The images to train on, those to validate on, and how many classes they have."""

    train: Sized
    val: Sized
    classes: int
    shards: tuple[Path, ...] = ()  # of format="shards": the tar files of the training images


def image_sets(cfg: Config) -> ImageSets:
    """The images that a config names; nothing is decoded yet.

    Raises:
        DataError: a folder or file that cannot be used; the message names it.
    """
    if cfg.data == "synthetic":  # as long as a sampler needs it; `loaders` knows what to do
        images = range(cfg.batch_size * max(cfg.steps, cfg.val_steps))
        return ImageSets(images, images, SYNTHETIC_CLASSES)
    if cfg.data == "crops":
        return _crops(cfg)
    root = default_set.ensure() if cfg.data == "default" else Path(cfg.data_root).expanduser()
    stored = root if cfg.format in ("files", "gpu_decode") else _stored(root, cfg)
    tars = shards.paths(stored, "train") if cfg.format == "shards" else ()
    root = stored if cfg.format in ("small", "raw") else root
    opened = {"raw": Raw, "gpu_decode": partial(_folder, kind=Encoded)}.get(cfg.format, _folder)
    train, val = opened(root, "train", train_view(cfg)), opened(root, "val", val_view(cfg))
    if train.classes != val.classes:
        odd = sorted(set(train.classes) ^ set(val.classes))
        raise DataError(f"train/ and val/ in {root} differ in their class folders: {odd[:5]}")
    if tars:
        _check_shards(train, stored)
    _check_converted((train, val), root, cfg)
    _check_enough(len(train), cfg, root)
    return ImageSets(train, to_validate(val, cfg), len(train.classes), tuple(tars))


def _crops(cfg: Config) -> ImageSets:
    root = crop_set.ensure()
    train = Crops(root, "train")
    val = Crops(root, "val") if cfg.val_steps else train.first(0)  # in a race a run has none
    _check_enough(len(train), cfg, root)
    return ImageSets(train, to_validate(val, cfg), len(train.classes))


def _stored(root: Path, cfg: Config) -> Path:
    """Where the set lies in the config's format; the default set is converted at first use."""
    if cfg.data == "default":
        return convert.convert(cfg.format)
    folder = convert.place(cfg.format, root.resolve())
    if not (folder / convert.INDEX).exists():  # a large set takes hours: by itself, and once
        raise DataError(
            f"{root} was not converted yet: course data --as {cfg.format} --data-root {root}"
        )
    return folder


def _check_converted(sets: Iterable[Files | Raw], root: Path, cfg: Config) -> None:
    if cfg.format not in ("small", "raw"):
        return
    splits = convert.index(root, cfg.format)["splits"]
    for split, found in zip(convert.SPLITS, sets):
        if len(found) != splits[split]["images"]:
            raise DataError(
                f"{root / split} holds {len(found)} of the {splits[split]['images']} images that "
                f"were converted: run course data --as {cfg.format} again"
            )


def _check_shards(train: Files, stored: Path) -> None:
    """Are the images in shards those that the folders hold? Their classes are numbers there."""
    about = convert.index(stored, "shards")
    split = about["splits"]["train"]
    if about["classes"] != train.classes or split["images"] + len(split["damaged"]) != len(train):
        raise DataError(
            f"{train.root} holds {len(train)} images in {len(train.classes)} classes, and its "
            f"shards {split['images']} in {len(about['classes'])}: convert the set again, by "
            f"course data --as shards"
        )


def _check_enough(images: int, cfg: Config, root: Path) -> None:
    # Where an epoch has all its steps, each rank draws its share again and again: together they may
    # take more than there is. Elsewhere batches would be smaller than they are counted.
    if images < cfg.batch_size / (_ranks() if cfg.drop_last else 1):
        raise DataError(
            f"batch_size={cfg.batch_size} is more than the {images} training images in "
            f'{root}: use a smaller batch, or data="synthetic" to measure speed and memory'
        )
    batches = math.ceil(images / cfg.batch_size) * cfg.epochs
    if not cfg.drop_last and batches <= cfg.warmup_steps:
        raise DataError(
            f"{images} images in {root} make {batches} batches of {cfg.batch_size} in "
            f"{cfg.epochs} epochs, and warmup_steps={cfg.warmup_steps} leaves none to measure: "
            f"raise epochs, lower batch_size, or set drop_last=True, so that an epoch has all steps"
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
    network's own speed shows; crops lie there, too.

    An epoch has `cfg.steps` batches for training, however many files there are. With
    `cfg.drop_last` off it ends with the files at the latest, its last batch perhaps smaller.

    Args:
        share: images of a batch that this process loads; None: all of `cfg.batch_size`.
        sampler: the training images of one pass, in order; None: all, shuffled by `cfg.seed`.
        val_sampler: which validation images; None: all.
        loading: further arguments of PyTorch's DataLoader.
    """
    share = share or cfg.batch_size
    if cfg.data == "synthetic":
        return (Synthetic(cfg, device, share),) * 2
    loading = _arguments(cfg) | loading
    train = _training_loader(sets, cfg, share, sampler, loading)
    taken = None if val_sampler is None else Drawing(val_sampler)
    val = DataLoader(sets.val, share, sampler=taken, **loading)
    _made[:] = [weakref.ref(val)]
    failures.give_up_in_time(train)
    failures.give_up_in_time(val)
    return _on_device(sets, cfg, device, train, val)


def _on_device(
    sets: ImageSets, cfg: Config, device: torch.device, train: DataLoader, val: DataLoader
) -> tuple[Batches, Batches]:
    """The same batches, or where the device makes them of what these hold, those."""
    if cfg.data == "crops":
        moved = OnDevice(train, sets.train, device, cfg.seed + _rank())
        return moved, OnDevice(val, sets.val.dataset, device)
    if cfg.format == "gpu_decode":
        return Decoded(train, cfg, device, train=True), Decoded(val, cfg, device, train=False)
    return train, val


def skip(batches: Batches, images: int) -> None:
    """Leave out so many images of this rank in the next epoch: it was begun before, by another.

    None where the number is below 0: the training that went on was at its end before this epoch.
    A synthetic batch is always the same, so there nothing is to be done.
    """
    if isinstance(batches, DataLoader):
        batches.sampler.skip = max(0, images)


def _arguments(cfg: Config) -> dict[str, Any]:
    """What DataLoader is told besides what the script says."""
    own = {"worker_init_fn": _make_way}
    return own | {"collate_fn": on_device.collate} if cfg.format == "gpu_decode" else own


def _make_way(worker: int) -> None:
    """Let a loading process work where no other wants its core.

    Where they keep all cores busy, the process that tells the device what to compute would wait
    for one again and again, and the device with it.
    """
    if hasattr(os, "nice"):  # Windows has none
        os.nice(NICENESS)


def made_last() -> DataLoader | None:
    """The validation batches that `loaders` made last in this process, for the record."""
    return _made[-1]() if _made else None


def _training_loader(
    sets: ImageSets, cfg: Config, share: int, sampler: Sampler | None, loading: dict[str, Any]
) -> DataLoader:
    order = torch.Generator().manual_seed(cfg.seed)
    if isinstance(sets.train, IterableDataset):  # it has an order of its own
        order.manual_seed(cfg.seed + _rank())
        return DataLoader(sets.train, share, generator=order, **loading)
    if sampler is None:  # with random numbers of its own: the loader draws at its workers' start
        sampler = RandomSampler(sets.train, generator=torch.Generator().manual_seed(cfg.seed))
    else:
        order.manual_seed(cfg.seed + getattr(sampler, "rank", _rank()))  # workers draw from it
    images = share * cfg.steps if cfg.drop_last else None
    grow = _growing(sets, cfg) if cfg.start_px else None
    return DataLoader(
        sets.train,
        share,
        sampler=Drawing(sampler, images, cfg.epochs, grow),
        drop_last=cfg.drop_last,
        generator=order,
        **loading,
    )


def _rank() -> int:
    joined = distributed.is_available() and distributed.is_initialized()
    return distributed.get_rank() if joined else 0


def _ranks() -> int:
    joined = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if joined else 1


def _growing(sets: ImageSets, cfg: Config) -> Callable[[int], None]:
    """What gives an epoch's crops their size, before the first of them is asked for."""
    crop = sets.train.transform.transforms[0]
    crop.grow_to(epoch_px(cfg, 0))
    return lambda epoch: crop.grow_to(epoch_px(cfg, epoch))


def to_validate(val: Files | Raw | Crops, cfg: Config) -> Subset:
    """The images that a config validates on, in any order."""
    # Files come class after class: the first batches alone would show one or two classes.
    order = torch.randperm(len(val), generator=torch.Generator().manual_seed(cfg.seed))
    return Subset(val, order[: cfg.val_images or None].tolist())


class Drawing(Sampler):
    """Which images an epoch takes, and in which order: a sampler's, again and again.

    Where an epoch takes more images than there are, the sampler shuffles anew for each pass over
    them. So no image comes again before all have come, and ranks' shares stay apart, but for the
    few that a sampler itself repeats to make shares equal.

    Args:
        sampler: the images of a pass. Its `set_epoch`, if it has one, is called for each.
        images: how many an epoch takes; None: one pass.
        epochs: of the run, so that the passes of different ones are shuffled differently.
        begin: is called with each epoch's number where the epoch begins.

    Attributes:
        skip: so many images of the next epoch are left out, without being loaded: it began before.
        taken: the first NOTED images of each epoch, in order.
        low: of each epoch's first pass those that are numbered below NOTED: two ranks' first
            ones may have nothing in common by chance.
    """

    def __init__(
        self,
        sampler: Iterable[int],
        images: int | None = None,
        epochs: int = 1,
        begin: Callable[[int], None] | None = None,
    ) -> None:
        self.sampler, self.images, self.epochs = sampler, images, epochs
        self.begin = begin
        self.taken, self.low = [], []
        self.skip = 0

    def __len__(self) -> int:
        return len(self.sampler) if self.images is None else self.images

    def __iter__(self) -> Iterator[int]:
        epoch, left = getattr(self.sampler, "epoch", 0), len(self)
        if self.begin:
            self.begin(len(self.taken))
        for number in itertools.count():
            if number and hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch + number * self.epochs)
            order = [int(image) for image in self.sampler][:left]  # of a tensor, too
            if number == 0:
                self.taken.append(order[:NOTED])
                self.low.append(sorted(image for image in order if image < NOTED))
            elif hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
            left -= len(order)
            yield from order[self.skip :]
            self.skip = max(0, self.skip - len(order))
            if left <= 0 or not order:
                return


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


def _folder(root: Path, split: str, view: v2.Transform, kind: type[Files] = Files) -> Files:
    folder = root / split
    if not folder.is_dir():
        raise DataError(
            f"no folder {folder}: data_root must hold train/ and val/, each with one folder "
            f"a class, as ImageNet has it"
        )
    try:
        return kind(folder, view)
    except FileNotFoundError as error:
        # torchvision's message names the classes that hold no image, or says there are none.
        raise DataError(f"{folder} is incomplete: {error}") from error
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error}") from error
