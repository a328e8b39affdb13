"""The crops: 65,536 images of 32 pixels, so small that complete training runs take seconds.

They are cut out of the default set's photographs, rotated, scaled and recoloured; the class is the
photograph. Training and validation crops are from different tiles, so that validation measures
generalisation: memorised images do not help.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import grid_sample
from torch.utils.data import DataLoader
from tqdm import tqdm

from course.config import CROPS_PX
from course.data import default_set
from course.data.default_set import MANIFEST, PHOTOGRAPHS
from course.data.folders import DataError
from course.runs.files import link_or_copy, read_dict

SHORTER_PX = 480  # a photograph's shorter side before it is divided into tiles
TILE_PX = 96
VAL_TILES = 0.2  # the share of a photograph's tiles
SIDES_PX = (28.0, 60.0)  # of a crop before it is scaled to 32 pixels
MAX_ANGLE = math.radians(25)
PAD = 4  # training images are shifted by up to this number of pixels
SPAN = 2 * PAD + 1  # shifts in each direction
SPLITS = ("train", "val")


@dataclass(frozen=True)
class Recipe:
    """The contents of the set. Equal recipes give equal images."""

    train: int = 65_536
    val: int = 8_192
    px: int = CROPS_PX
    seed: int = 0
    version: int = 1


def default_root() -> Path:
    """Return the folder of the crops, next to the default set."""
    place = default_set.default_root().resolve()
    return place.with_name(f"{place.name}-crops")


def ensure(root: Path | None = None, recipe: Recipe = Recipe()) -> Path:
    """Return the folder of the crops; create it first if needed, which takes about ten seconds.

    Raises:
        DataError: the folder cannot be written, or contains other files.
    """
    return default_set.ensure_complete(
        (root or default_root()).resolve(),
        is_complete=lambda folder: is_complete(folder, recipe),
        fill=lambda folder: _fill(folder, recipe),
        needs_mb=240,
        what="crops",
    )


def is_complete(root: Path, recipe: Recipe = Recipe()) -> bool:
    """Return whether the crops of this recipe are there, with the right file sizes."""
    manifest = read_dict(root / MANIFEST)
    return manifest.get("recipe") == asdict(recipe) and all(
        (root / name).is_file() and (root / name).stat().st_size == about["bytes"]
        for name, about in manifest.get("files", {}).items()
    )


def ensure_blind() -> Path:
    """Return a value of COURSE_DATA for runs that must not use the validation crops.

    Its folder has only the training crops, as hard links if possible. Nothing can keep a script
    from creating the validation crops itself.
    """
    source, place = ensure(), default_set.default_root().resolve()
    root = place.with_name(f"{place.name}-blind")
    about = read_dict(source / MANIFEST)
    files = {name: v for name, v in about["files"].items() if name.startswith("train")}

    def fill(empty: Path) -> None:
        for name in files:
            link_or_copy(source / name, empty / name)
        default_set.write_manifest(empty, about | {"files": files})

    default_set.ensure_complete(
        root.with_name(f"{root.name}-crops"),
        is_complete=is_complete,
        fill=fill,
        needs_mb=200,
        what="crops without validation",
    )
    return root


class Crops:
    """A split of the crops. An item is only its number, because the images are on the device.

    Attributes:
        images: uint8 of shape (N, 3, 32, 32). labels: int64 of shape (N,).

    Raises:
        DataError: the folder has no such crops.
    """

    def __init__(self, root: Path, split: str) -> None:
        self.classes = [*PHOTOGRAPHS]
        manifest = read_dict(root / MANIFEST)["files"]
        arrays = []
        for name in (f"{split}.npy", f"{split}-labels.npy"):
            if name not in manifest:
                raise DataError(f"{root} has no {split} crops: this run is not given any")
            arrays.append(torch.from_numpy(np.load(root / name)))
        self.images, self.labels = arrays

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> int:
        return index

    def first(self, count: int) -> Crops:
        """Return the first images as a split with the same classes."""
        part = copy.copy(self)
        part.images, part.labels = self.images[:count], self.labels[:count]
        return part


class OnDevice:
    """Batches of crops, gathered on the device.

    Args:
        batches: batches of the images' numbers.
        seed: for flips and shifts; None: no changes. The changes follow the order of images, so
            that they do not depend on the batch size.
    """

    def __init__(
        self, batches: DataLoader, crops: Crops, device: torch.device, seed: int | None = None
    ) -> None:
        self.batches = batches
        self.images, self.labels = crops.images.to(device), crops.labels.to(device)
        self._random = None if seed is None else torch.Generator().manual_seed(seed)
        self._is_first = True  # epoch of this process

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.__dict__["batches"], name)  # the DataLoader's settings

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        if self._is_first and self._random:
            sampler = self.batches.sampler
            self._draw(sampler.epoch * len(sampler) + sampler.skip)  # by an earlier process
        self._is_first = False
        for numbers in self.batches:
            numbers = numbers.to(self.images.device, non_blocking=True)
            images, labels = self.images[numbers], self.labels[numbers]
            yield (self._shift_and_flip(images) if self._random else images), labels

    def _draw(self, images: int) -> torch.Tensor:
        return torch.randint(2 * SPAN**2, (images,), generator=self._random)

    def _shift_and_flip(self, images: torch.Tensor) -> torch.Tensor:
        """Shift each image by up to PAD pixels, with reflected borders, and flip half of them."""
        count, _, height, width = images.shape
        device = images.device
        draws = self._draw(count).to(device, non_blocking=True)[:, None]
        flip, down, right = draws % 2, draws // 2 % SPAN - PAD, draws // 2 // SPAN - PAD
        rows = _reflect(torch.arange(height, device=device) + down, height)
        columns = _reflect(torch.arange(width, device=device) + right, width)
        columns = torch.where(flip.bool(), width - 1 - columns, columns)
        number = torch.arange(count, device=device)[:, None, None]
        images = images.permute(0, 2, 3, 1)[number, rows[:, :, None], columns[:, None, :]]
        return images.permute(0, 3, 1, 2)


def _reflect(positions: torch.Tensor, length: int) -> torch.Tensor:
    """Reflect positions outside 0 … length - 1 at the border."""
    return (length - 1) - ((length - 1) - positions.abs()).abs()


def tiles(height: int, width: int, seed: int) -> dict[str, torch.Tensor]:
    """Return the tiles of a photograph by split: (y, x) of their upper left corners, (T, 2)."""
    starts = torch.cartesian_prod(
        torch.arange(height // TILE_PX) * TILE_PX, torch.arange(width // TILE_PX) * TILE_PX
    )
    random = torch.Generator().manual_seed(seed)
    starts = starts[torch.randperm(len(starts), generator=random)]
    val = max(1, round(VAL_TILES * len(starts)))
    return {"train": starts[val:], "val": starts[:val]}


def corners(corner: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Draw a crop in each tile, which is given by its upper left corner, shape (N, 2).

    The rotated crop is inside its tile, with a margin of a pixel for interpolation.

    Returns:
        y and x of the centre, side in pixels, angle in radians: shape (N, 4).
    """
    draws = torch.rand(len(corner), 4, generator=random)
    side = SIDES_PX[0] + (SIDES_PX[1] - SIDES_PX[0]) * draws[:, 0]
    angle = MAX_ANGLE * (2 * draws[:, 1] - 1)
    reach = side / 2 * (angle.cos() + angle.sin().abs()) + 1
    centre = corner + reach[:, None] + (TILE_PX - 2 * reach)[:, None] * draws[:, 2:]
    return torch.column_stack([centre, side, angle])


def _fill(root: Path, recipe: Recipe) -> None:
    """Write both splits and the manifest."""
    order = torch.Generator().manual_seed(recipe.seed)
    crops: dict[str, list[torch.Tensor]] = {split: [] for split in SPLITS}
    for number, name in enumerate(tqdm(PHOTOGRAPHS, "making the crops", unit=" photographs")):
        photo = _photograph(name)
        places = tiles(*photo.shape[1:], recipe.seed + number)
        for split in SPLITS:
            total = getattr(recipe, split)
            count = total // len(PHOTOGRAPHS) + (number < total % len(PHOTOGRAPHS))
            random = torch.Generator().manual_seed(recipe.seed + 1000 * (split == "val") + number)
            corner = places[split][torch.randint(len(places[split]), (count,), generator=random)]
            images = _cut(photo, corners(corner, random), recipe)
            crops[split].append(_recolour(images, random))
    files = {}
    for split in SPLITS:
        labels = [torch.full((len(images),), label) for label, images in enumerate(crops[split])]
        permutation = torch.randperm(getattr(recipe, split), generator=order)
        for name, tensors in ((split, crops[split]), (f"{split}-labels", labels)):
            path = root / f"{name}.npy"
            np.save(path, torch.cat(tensors)[permutation].numpy())
            files[path.name] = {"bytes": path.stat().st_size}
    default_set.write_manifest(root, {"recipe": asdict(recipe), "files": files})


def _photograph(name: str) -> torch.Tensor:
    """Load a photograph as floats from 0 to 255, of shape (3, H, W)."""
    photo = default_set.photograph(name)
    scale = SHORTER_PX / min(photo.size)
    photo = photo.resize([round(scale * side) for side in photo.size])
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1).float()


def _cut(photo: torch.Tensor, places: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Cut out the crops that `corners` returned; shape (N, 3, px, px)."""
    height, width = photo.shape[1:]
    y, x, side, angle = (column[:, None, None] for column in places.unbind(1))
    unit = (torch.arange(recipe.px) + 0.5) / recipe.px - 0.5
    down, right = side * unit[None, :, None], side * unit[None, None, :]
    rows = y + down * angle.cos() - right * angle.sin()
    columns = x + down * angle.sin() + right * angle.cos()
    grid = torch.stack([2 * columns / width - 1, 2 * rows / height - 1], dim=-1)
    parts = [
        grid_sample(photo.expand(len(part), -1, -1, -1), part, align_corners=False)
        for part in grid.split(512)
    ]
    return torch.cat(parts)


def _recolour(crops: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Change brightness, contrast and saturation of each crop (half become grey); add noise."""
    brightness, contrast, saturation = 0.5 + torch.rand(3, len(crops), 1, 1, 1, generator=random)
    saturation *= torch.rand(saturation.shape, generator=random) < 0.5
    grey = crops.mean(dim=1, keepdim=True)
    crops = grey + saturation * (crops - grey)
    mean = grey.mean(dim=(2, 3), keepdim=True)
    crops = brightness * (mean + contrast * (crops - mean))
    crops += 12 * torch.randn(crops.shape, generator=random)
    return crops.round().clamp(0, 255).to(torch.uint8)
