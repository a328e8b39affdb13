"""Make small runs comparable if their scripts differ where more than one choice is right.

There are many ways to split images among ranks, or to name a device. Each choice is noted for
`course.checks.facts`, and replaced by the solution's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler, Sampler, Subset

from course.checks.notes import Notes
from course.config import Config
from course.data import loader
from course.data.loader import ImageSets

Note = Callable[[list[int]], None]


class Replaced(Sampler):
    """Yields the solution's images, and notes those that a script's sampler would yield."""

    def __init__(self, chosen: Iterable[int], due: Sampler | range, note: Note) -> None:
        self._chosen, self._due, self._note, self._passes = chosen, due, note, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chosen, name)  # such as set_epoch

    def __len__(self) -> int:
        len(self._chosen)  # an error if it has no length, as in training without this class
        return len(self._due)

    def __iter__(self) -> Iterator[int]:
        with torch.random.fork_rng(devices=[]):
            self._note([int(image) for image in self._chosen])
        if isinstance(self._due, DistributedSampler):
            self._due.set_epoch(self._passes)
        self._passes += 1
        return iter(self._due)


def observe(notes: Notes) -> None:
    """Replace choices in this process from now on, and note them: samplers and DDP's devices."""
    _observe_samplers(notes)
    wrap, scale = DistributedDataParallel.__init__, torch.amp.GradScaler.__init__

    def wrapped(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None,
        *rest: Any, **options: Any,
    ) -> None:  # fmt: skip
        name = str(device_ids[0]).rpartition(":")[2] if device_ids else "cpu"
        is_own = name in ("cpu", os.environ["LOCAL_RANK"])
        notes.ddp_devices.append("run.local_rank" if is_own else name)
        if distributed.is_initialized():
            group = options.get("process_group")
            notes.ddp_ranks = str(distributed.get_process_group_ranks(group))
        wrap(self, module, None, None, *rest, **options)  # PyTorch refuses numbers on a CPU

    def scaled(self: Any, device: str = "cuda", *rest: Any, **options: Any) -> None:
        scale(self, "cpu", *rest, **options)  # it works on all, but for "cuda" needs a GPU

    DistributedDataParallel.__init__, torch.amp.GradScaler.__init__ = wrapped, scaled


def _observe_samplers(notes: Notes) -> None:
    open_sets, load, opened = loader.image_sets, loader.loaders, []
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def image_sets(cfg: Config) -> ImageSets:
        opened.append(open_sets(cfg))
        return opened[-1]

    def loaders(
        sets: ImageSets, cfg: Config, *rest: Any, sampler: Any = None, val_sampler: Any = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        if options.get("worker_init_fn"):
            notes.worker_init_fn = "present"
        if cfg.script == "train.py" and cfg.data != "synthetic":  # the others have their samplers
            is_default = cfg.seed != 0 == getattr(sampler, "seed", cfg.seed)
            notes.sampler_seed = "0, the default" if is_default else "chosen"
            is_stream = isinstance(sets.train, IterableDataset)  # it has its own order
            if sampler is None and ranks == 1 and not is_stream:  # right, too, and another order
                sampler = RandomSampler(sets.train, generator=torch.Generator())
            if sampler is not None and not is_stream:
                shares = DistributedSampler(sets.train, ranks, rank, seed=cfg.seed)
                sampler = Replaced(sampler, shares, notes.chosen_train.append)
            numbers = range(len(sets.val)) if val_sampler is None else val_sampler
            is_split = val_sampler is not None
            if isinstance(sets.val, Subset) and sets.val.dataset is opened[-1].val:
                part, is_split = sets.val.indices, True
                sets, numbers = replace(sets, val=opened[-1].val), [part[at] for at in numbers]
            if sets.val is opened[-1].val:
                due = range(rank, len(sets.val), ranks) if is_split else numbers
                val_sampler = Replaced(numbers, due, notes.chosen_val.append)
        return load(sets, cfg, *rest, sampler=sampler, val_sampler=val_sampler, **options)

    loader.image_sets, loader.loaders = image_sets, loaders
