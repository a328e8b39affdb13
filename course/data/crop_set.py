"""The crops: 65,536 images of 32 pixels, small enough that whole trainings take seconds.

They are cut out of the default set's photographs, turned, scaled and recoloured; the class is the
photograph. Training and validation crops come from different tiles of it, so that what a network
has learned by heart is of no use to it, and generalisation shows.
"""

from __future__ import annotations

import copy
import io
import math
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from platformdirs import user_cache_path
from torch.nn.functional import grid_sample
from torch.utils.data import DataLoader
from tqdm import tqdm

from course.config import CROPS_PX
from course.data import default_set
from course.data.default_set import MANIFEST, PHOTOGRAPHS, DataError
from course.runs.files import read_dict

SHORTER_PX = 480  # a photograph's shorter side, before it is cut into tiles
TILE_PX = 96
VAL_TILES = 0.2  # the share of a photograph's tiles
SIDES_PX = (28.0, 60.0)  # of a crop, before it becomes one of 32 pixels
TURN = math.radians(25)  # at most, either way
PAD = 4  # pixels by which a training image is moved, at most
SPLITS = ("train", "val")


@dataclass(frozen=True)
class Recipe:
    """What the crops are made of. Equal recipes make equal images."""

    train: int = 65_536
    val: int = 8_192
    px: int = CROPS_PX
    seed: int = 0
    version: int = 1


def default_root() -> Path:
    """Where the crops lie: beside the default set, or in your cache if that is others' to write."""
    place = default_set.default_root().resolve()
    beside = place.with_name(f"{place.name}-crops")
    return beside if beside.exists() or _may_write(beside) else _own(beside)


def _may_write(root: Path) -> bool:
    """May a folder of this name be made?"""
    there = next(each for each in root.parents if each.exists())
    return os.access(there, os.W_OK)


def _own(root: Path) -> Path:
    """The same folder in the user's cache: of a data set that a class may only read."""
    return user_cache_path("make-training-fast") / root.name


def ensure(root: Path | None = None, recipe: Recipe = Recipe()) -> Path:
    """The folder of the crops, made now if they are not there whole: in about ten seconds.

    Raises:
        DataError: the folder cannot be written, or holds something else.
    """
    return default_set.ensure_whole(
        (root or default_root()).resolve(),
        is_whole=lambda folder: is_whole(folder, recipe),
        fill=lambda folder: _fill(folder, recipe),
        needs_mb=240,
        what="crops",
    )


def is_whole(root: Path, recipe: Recipe = Recipe()) -> bool:
    """True if the crops of this recipe are there, each file as long as it was written."""
    manifest = read_dict(root / MANIFEST)
    files = manifest.get("files", {})
    return manifest.get("recipe") == asdict(recipe) and all(
        (root / name).is_file() and (root / name).stat().st_size == about["bytes"]
        for name, about in files.items()
    )


def ensure_blind() -> Path:
    """What COURSE_DATA names for runs that are not to find the validation crops.

    The folder has the training crops alone, by hard links where the disk has them. It does not
    keep a script from making the others itself: nothing can.
    """
    whole, place = ensure(), default_set.default_root().resolve()
    beside = place.with_name(f"{place.name}-blind")
    about = read_dict(whole / MANIFEST)
    files = {name: each for name, each in about["files"].items() if name.startswith("train")}
    for root in (beside, _own(beside)):
        folder = root.with_name(f"{root.name}-crops")
        if is_whole(folder) and read_dict(folder / MANIFEST)["files"] == files:
            return root
        if _may_write(folder):
            break

    def fill(empty: Path) -> None:
        for name in files:
            _link(whole / name, empty / name)
        default_set.write_manifest(empty, about | {"files": files})

    shutil.rmtree(folder, ignore_errors=True)  # of other crops
    default_set.ensure_whole(
        folder, is_whole=is_whole, fill=fill, needs_mb=200, what="crops without validation"
    )
    return root


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a disk without hard links
        shutil.copyfile(source, target)


class Crops:
    """A split of the crops: what is asked for is an image's number, since all lie on the device.

    Attributes:
        images: uint8 of shape (N, 3, 32, 32). labels: int64 of shape (N,).

    Raises:
        DataError: a file is not what was written.
    """

    def __init__(self, root: Path, split: str) -> None:
        self.classes = [*PHOTOGRAPHS]
        about = read_dict(root / MANIFEST)["files"]
        found = []
        for name in (f"{split}.npy", f"{split}-labels.npy"):
            if name not in about:
                raise DataError(f"{root} has no {split} crops: a run of a race is not given any")
            try:
                content = (root / name).read_bytes()
            except OSError as error:
                raise DataError(f"{root / name} cannot be read: {error.strerror}") from error
            if zlib.crc32(content) != about[name]["crc32"]:
                raise DataError(
                    f"{root / name} is damaged: delete the folder {root}, and it is made again"
                )
            found.append(torch.from_numpy(np.load(io.BytesIO(content))))
        self.images, self.labels = found

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> int:
        return index

    def first(self, count: int) -> Crops:
        """The first so many of them, or none, as a split of the same classes."""
        some = copy.copy(self)
        some.images, some.labels = self.images[:count], self.labels[:count]
        return some


class OnDevice:
    """Batches of crops, taken on the device where all of them lie.

    Args:
        batches: those of their numbers.
        seed: of flips and shifts: by default there are none. They follow the images, so that
            batches of another size see the same ones.
    """

    def __init__(
        self, batches: DataLoader, crops: Crops, device: torch.device, seed: int | None = None
    ) -> None:
        self.batches = batches
        self.images, self.labels = crops.images.to(device), crops.labels.to(device)
        self._random = None if seed is None else torch.Generator().manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.__dict__["batches"], name)  # how it loads is the DataLoader's to tell

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for numbers in self.batches:
            taken = numbers.to(self.images.device, non_blocking=True)
            images, labels = self.images[taken], self.labels[taken]
            yield (self._moved(images) if self._random else images), labels

    def _moved(self, images: torch.Tensor) -> torch.Tensor:
        """Each image shifted by up to PAD pixels, its border mirrored, and flipped by chance."""
        count, _, height, width = images.shape
        drawn = torch.randint(2 * (2 * PAD + 1) ** 2, (count,), generator=self._random)
        drawn = drawn.to(images.device, non_blocking=True)[:, None]
        span = 2 * PAD + 1
        flip, down, right = drawn % 2, drawn // 2 % span - PAD, drawn // 2 // span - PAD
        rows = _mirrored(torch.arange(height, device=images.device) + down, height)
        columns = _mirrored(torch.arange(width, device=images.device) + right, width)
        columns = torch.where(flip.bool(), width - 1 - columns, columns)
        each = torch.arange(count, device=images.device)[:, None, None]
        moved = images.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]
        return moved.permute(0, 3, 1, 2)


def _mirrored(places: torch.Tensor, length: int) -> torch.Tensor:
    """Places outside 0 … length - 1 mirrored at the border."""
    return (length - 1) - ((length - 1) - places.abs()).abs()


def tiles(height: int, width: int, seed: int) -> dict[str, torch.Tensor]:
    """The tiles of a photograph by split: (y, x) of their upper left corners, shape (T, 2)."""
    found = torch.cartesian_prod(
        torch.arange(height // TILE_PX) * TILE_PX, torch.arange(width // TILE_PX) * TILE_PX
    )
    found = found[torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))]
    held_back = max(1, round(VAL_TILES * len(found)))
    return {"train": found[held_back:], "val": found[:held_back]}


def corners(corner: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """For each tile (its upper left corner, shape (N, 2)) the middle, side and angle of a crop.

    The turned crop lies inside its tile, with a pixel to spare for interpolation. Shape (N, 4):
    y, x, side in pixels, angle in radians.
    """
    drawn = torch.rand(len(corner), 4, generator=random)
    side = SIDES_PX[0] + (SIDES_PX[1] - SIDES_PX[0]) * drawn[:, 0]
    angle = TURN * (2 * drawn[:, 1] - 1)
    reach = side / 2 * (angle.cos() + angle.sin().abs()) + 1
    middle = corner + reach[:, None] + (TILE_PX - 2 * reach)[:, None] * drawn[:, 2:]
    return torch.column_stack([middle, side, angle])


def _fill(root: Path, recipe: Recipe) -> None:
    """Write both splits, and what tells that they are whole."""
    order = torch.Generator().manual_seed(recipe.seed)
    made: dict[str, list[torch.Tensor]] = {split: [] for split in SPLITS}
    for number, name in enumerate(tqdm(PHOTOGRAPHS, "making the crops", unit=" photographs")):
        photo = _photograph(name)
        places = tiles(*photo.shape[1:], recipe.seed + number)
        for split in SPLITS:
            wanted = getattr(recipe, split)
            count = wanted // len(PHOTOGRAPHS) + (number < wanted % len(PHOTOGRAPHS))
            random = torch.Generator().manual_seed(recipe.seed + 1000 * (split == "val") + number)
            corner = places[split][torch.randint(len(places[split]), (count,), generator=random)]
            made[split].append(_recoloured(_cut(photo, corners(corner, random), recipe), random))
    about = {}
    for split in SPLITS:
        labels = [torch.full((len(each),), at) for at, each in enumerate(made[split])]
        mixed = torch.randperm(getattr(recipe, split), generator=order)
        for name, tensor in ((split, made[split]), (f"{split}-labels", labels)):
            path = root / f"{name}.npy"
            np.save(path, torch.cat(tensor)[mixed].numpy())
            content = path.read_bytes()
            about[path.name] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    default_set.write_manifest(root, {"recipe": asdict(recipe), "files": about})


def _photograph(name: str) -> torch.Tensor:
    """Floats from 0 to 255, of shape (3, H, W)."""
    photo = default_set.photograph(name)
    scale = SHORTER_PX / min(photo.size)
    photo = photo.resize([round(scale * side) for side in photo.size])
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1).float()


def _cut(photo: torch.Tensor, places: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Crops of shape (N, 3, px, px), each at a place that `corners` gave."""
    height, width = photo.shape[1:]
    y, x, side, angle = (each[:, None, None] for each in places.unbind(1))
    unit = (torch.arange(recipe.px) + 0.5) / recipe.px - 0.5
    down, right = side * unit[None, :, None], side * unit[None, None, :]
    rows = y + down * angle.cos() - right * angle.sin()
    columns = x + down * angle.sin() + right * angle.cos()
    grid = torch.stack([2 * columns / width - 1, 2 * rows / height - 1], dim=-1)
    cut = [
        grid_sample(photo.expand(len(part), -1, -1, -1), part, align_corners=False)
        for part in grid.split(512)
    ]
    return torch.cat(cut)


def _recoloured(crops: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Other brightness, contrast and saturation for each crop, half of them grey; noise. uint8."""
    brightness, contrast, saturation = 0.5 + torch.rand(3, len(crops), 1, 1, 1, generator=random)
    saturation *= torch.rand(saturation.shape, generator=random) < 0.5
    grey = crops.mean(dim=1, keepdim=True)
    crops = grey + saturation * (crops - grey)
    middle = grey.mean(dim=(2, 3), keepdim=True)
    crops = brightness * (middle + contrast * (crops - middle))
    crops += 12 * torch.randn(crops.shape, generator=random)
    return crops.round().clamp(0, 255).to(torch.uint8)
