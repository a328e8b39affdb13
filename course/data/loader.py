"""One loader for synthetic tensors, the default set, ImageNet and the crops."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, Subset

from course.config import Config
from course.data import crop_set, default_set, folders
from course.data.augment import randaugmented as randaugmented  # scripts import it from here
from course.data.crop_set import Crops, OnDevice
from course.data.folders import DataError
from course.data.formats import convert, gpu_decode, shards
from course.data.formats.raw import Raw
from course.data.images import Files, epoch_px, open_folder, train_view, val_view
from course.data.images import normalised as normalised  # and this
from course.data.listing import check_classes
from course.data.seeded import Seeded
from course.runs import failures

SYNTHETIC_CLASSES = 1000
NOTED = 64  # images per epoch that a sampler stores for the checks
NICENESS = 10  # of worker processes; see `_prepare_worker`
END_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)  # Slurm sends them to all processes
_val_loader: list[weakref.ref[DataLoader]] = []  # weak, so that its workers can end
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class ImageSets:
    """The images for training and validation, and their number of classes."""

    train: Sized
    val: Sized
    classes: int
    shards: tuple[Path, ...] = ()  # for format="shards": the tar files of the training images


def image_sets(cfg: Config) -> ImageSets:
    """Return the images that a config names, without decoding any.

    Raises:
        DataError: a folder or file cannot be used; the message names it.
    """
    if cfg.data == "synthetic":  # only as many as a sampler needs
        images = range(cfg.batch_size * max(cfg.steps, cfg.val_steps))
        return ImageSets(images, images, SYNTHETIC_CLASSES)
    tars: list[Path] = []
    if cfg.data == "crops":
        root = crop_set.ensure()
        train = Crops(root, "train")
        val = Crops(root, "val") if cfg.val_steps else train.first(0)  # else there may be none
    else:
        root = default_set.ensure() if cfg.data == "default" else Path(cfg.data_root).expanduser()
        root = _converted(root, cfg) if cfg.format in folders.KINDS else root
        tars = shards.paths(root, "train") if cfg.format == "shards" else []
        special = {"raw": Raw, "gpu_decode": partial(open_folder, kind=gpu_decode.Encoded)}
        open_split = special.get(cfg.format, open_folder)
        train = open_split(root, "train", train_view(cfg))
        val = open_split(root, "val", val_view(cfg))
        check_classes(root, train.classes, val.classes)
    _check_count(len(train), cfg, root)
    return ImageSets(train, val_subset(val, cfg), len(train.classes), tuple(tars))


def _converted(root: Path, cfg: Config) -> Path:
    """Return the folder of the set in the config's format; convert the default set if needed."""
    if cfg.data == "default":
        return convert.convert_set(cfg.format)
    return folders.converted_folder(cfg.format, root)


def _check_count(images: int, cfg: Config, root: Path) -> None:
    """Raise DataError if there are too few images for the config."""
    # With drop_last, each rank repeats its share of the images, so together they may use more than
    # there are. Without it, batches would be smaller than in the config.
    if images < cfg.batch_size / (_rank_and_size()[1] if cfg.drop_last else 1):
        raise DataError(
            f"batch_size={cfg.batch_size} is more than the {images} training images in "
            f'{root}: use a smaller batch, or data="synthetic" to measure speed and memory'
        )
    batches = math.ceil(images / cfg.batch_size) * cfg.epochs
    if cfg.steps and not cfg.drop_last and batches <= cfg.warmup_steps:
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
    """Return training batches and validation batches.

    A batch is (images, labels). Images are normalised float32 of shape (N, 3, image_px, image_px),
    or with `cfg.uint8` bytes, which `normalised` converts; labels are int64 of shape (N,). Images
    from files arrive in host memory. Synthetic batches and crops are already on `device`.

    An epoch has `cfg.steps` training batches, however many files there are. With
    `cfg.drop_last=False` it ends with the files at the latest, perhaps with a smaller batch.

    Args:
        share: images of a batch that this process loads; None: all of `cfg.batch_size`.
        sampler: the training images of one pass, in order; None: all, shuffled by `cfg.seed`.
        val_sampler: the indices of validation images; None: all.
        loading: more arguments for PyTorch's DataLoader.
    """
    share = share or cfg.batch_size
    if cfg.data == "synthetic":
        return (Synthetic(cfg, device, share),) * 2
    loading = {"worker_init_fn": _prepare_worker} | loading
    _kill_workers_at_exit(os.getpid())
    if cfg.format == "gpu_decode":
        loading = {"collate_fn": gpu_decode.collate} | loading
    train = _training_loader(sets, cfg, share, sampler, loading)
    indices = None if val_sampler is None else EpochSampler(val_sampler)
    # With its own generator: the default one would be at a different place after a restart.
    val = DataLoader(sets.val, share, sampler=indices, generator=torch.Generator(), **loading)
    _val_loader[:] = [weakref.ref(val)]
    failures.set_worker_timeout(train)
    failures.set_worker_timeout(val)
    if cfg.data == "crops":
        seed = cfg.seed + getattr(sampler, "rank", _rank_and_size()[0])
        batches = OnDevice(train, sets.train, device, seed)
        return batches, OnDevice(val, sets.val.dataset, device)
    if cfg.format == "gpu_decode":
        decoded = gpu_decode.Decoded
        return decoded(train, cfg, device, train=True), decoded(val, cfg, device, train=False)
    return train, val


def _training_loader(
    sets: ImageSets, cfg: Config, share: int, sampler: Sampler | None, loading: dict[str, Any]
) -> DataLoader:
    random = torch.Generator().manual_seed(cfg.seed)  # of the workers
    if isinstance(sets.train, IterableDataset):  # it has its own order
        random.manual_seed(cfg.seed + _rank_and_size()[0])
        return shards.ShardLoader(sets.train, share, generator=random, **loading)
    if sampler is None:  # with its own generator, because starting workers draws numbers
        sampler = RandomSampler(sets.train, generator=torch.Generator().manual_seed(cfg.seed))
    else:
        random.manual_seed(cfg.seed + getattr(sampler, "rank", _rank_and_size()[0]))
    begin_epoch = None
    if cfg.start_px:
        crop = sets.train.transform.transforms[0]
        crop.grow_to(epoch_px(cfg, 0))

        def begin_epoch(epoch: int) -> None:
            crop.grow_to(epoch_px(cfg, epoch))

    images = share * cfg.steps if cfg.drop_last else None
    is_seeded = cfg.data != "crops" and (cfg.save_every or cfg.deterministic)
    count = len(sets.train) if is_seeded else 0
    return DataLoader(
        Seeded(sets.train, cfg.seed) if is_seeded else sets.train,
        share,
        sampler=EpochSampler(sampler, images, cfg.epochs, begin_epoch, count),
        drop_last=cfg.drop_last,
        generator=random,
        **loading,
    )


def set_epoch(batches: Batches, epoch: int) -> None:
    """Announce the next epoch of `loaders`' training batches; `Meter.steps` calls it."""
    for part in (getattr(batches, "sampler", None), getattr(batches, "dataset", None)):
        if isinstance(part, EpochSampler | Seeded | shards.ShardReader):
            part.set_epoch(epoch)


def repeated_sampler(sets: ImageSets, cfg: Config, rank: int, world_size: int) -> Sampler:
    """Return a sampler that gives each image to several ranks at once, and then the next ones.

    An epoch has as many images as without repetition, so it sees only a part of them.
    """
    from timm.data.distributed_sampler import RepeatAugSampler  # importing timm takes two seconds

    return RepeatAugSampler(sets.train, world_size, rank, num_repeats=cfg.ra_reps, selected_round=0)


def skip(batches: Batches, images: int) -> None:
    """Skip this rank's first images of the next epoch, which an earlier process has trained on.

    Negative numbers skip nothing. Synthetic batches are all equal, so there is nothing to skip.
    """
    for part in (batches, getattr(batches, "sampler", None)):
        if isinstance(part, EpochSampler | shards.ShardLoader):
            part.skip = max(0, images)


def _prepare_worker(worker: int) -> None:
    """Let a worker process use a core only while no other needs it, and ignore signals to end.

    If workers keep all cores busy, the process that starts the device's kernels would wait for a
    core again and again, and so would the device.

    Slurm sends its signals to all processes of a job, and the main process needs its workers until
    its step is complete and saved. It ends them itself (`_kill_workers_at_exit`); if it is killed,
    they notice this within seconds, and end.
    """
    os.nice(NICENESS)
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@cache
def _kill_workers_at_exit(process: int) -> None:
    """Kill this process's workers when it exits, once for each process id.

    Python would end them with SIGTERM, which they ignore, and wait for them without a limit.
    """
    Finalize(None, _kill_workers, exitpriority=0)  # unlike atexit, also in processes of a process


def _kill_workers() -> None:
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or PyTorch reports that they were killed
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()


def last_val_loader() -> DataLoader | None:
    """Return the validation loader that `loaders` created last in this process."""
    return _val_loader[-1]() if _val_loader else None


def _rank_and_size() -> tuple[int, int]:
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def val_subset(val: Files | Raw | Crops, cfg: Config) -> Subset:
    """Return the images that a config validates on, in random order."""
    # Files are sorted by class: the first batches would contain only one or two classes.
    order = torch.randperm(len(val), generator=torch.Generator().manual_seed(cfg.seed))
    return Subset(val, order[: cfg.val_images or None].tolist())


class EpochSampler(Sampler):
    """Repeats a sampler until an epoch has all its images.

    If an epoch uses more images than there are, the sampler shuffles again for each pass. So no
    image is repeated before all were used, and the shares of ranks stay separate, except for the
    few images that a sampler repeats to make shares equal.

    Args:
        sampler: the images of a pass. Its `set_epoch`, if it has one, is called for each pass.
        images: the number of images per epoch; None: one pass.
        epochs: of the run, so that the passes of different epochs are shuffled differently.
        begin: is called with each epoch's number when the epoch begins.
        count: of all images, for a `Seeded` set: an image that an epoch uses again, in a later pass
            or by repeated augmentation, gets a higher number.

    Attributes:
        epoch: the number of the next epoch.
        skip: the next epoch leaves out this number of images, without loading them.
        taken: the first NOTED images of each epoch, in order.
    """

    def __init__(
        self,
        sampler: Iterable[int],
        images: int | None = None,
        epochs: int = 1,
        begin: Callable[[int], None] | None = None,
        count: int = 0,
    ) -> None:
        self.sampler, self.images, self.epochs = sampler, images, epochs
        self.begin, self.count = begin, count
        self.taken: list[list[int]] = []
        self.epoch = self.skip = 0

    def __len__(self) -> int:
        return len(self.sampler) if self.images is None else self.images

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        shuffled_epoch, remaining = getattr(self.sampler, "epoch", 0), len(self)
        skip, self.skip = self.skip, 0  # first, because an epoch can end before its last image
        if self.begin:
            self.begin(self.epoch)
        has_epochs = hasattr(self.sampler, "set_epoch")
        repeats = getattr(self.sampler, "num_repeats", 1)  # of an image, in a row over all ranks
        rank, ranks = getattr(self.sampler, "rank", 0), getattr(self.sampler, "num_replicas", 1)
        if not (has_epochs or self.taken):  # draw what an earlier process has drawn
            for _ in range(self.epoch * math.ceil(len(self) / max(1, len(self.sampler)))):
                list(self.sampler)
        self.epoch += 1
        for number in itertools.count():
            if number and has_epochs:
                self.sampler.set_epoch(shuffled_epoch + number * self.epochs)
            # An array, because a list of ImageNet's images takes 51 MB; they may be tensors.
            order = array("q", map(int, self.sampler))[:remaining]
            if number == 0:
                self.taken.append(order[:NOTED].tolist())
            elif has_epochs:
                self.sampler.set_epoch(shuffled_epoch)
            remaining -= len(order)
            for place in range(skip, len(order)):
                use = number * repeats + (place * ranks + rank) % repeats
                yield order[place] + use * self.count
            skip = max(0, skip - len(order))
            if remaining <= 0 or not order:
                return


class Synthetic:
    """Repeats one random batch: no file is read and no image decoded."""

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
