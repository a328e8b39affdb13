"""Volumes: ellipsoids of one photograph's texture within another's, for the 3D U-Net.

KiTS19 has 17 GB of patients' scans. Here a photograph is the tissue, each layer of the volume a
little further along it; "kidneys" are ellipsoids with the texture of a second one, and in some of
them lies a "tumour", a ball of a third.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from course.data import default_set
from course.data.default_set import MANIFEST, photograph, write_manifest
from course.data.formats.raw import map_array
from course.data.images import one_thread
from course.runs.files import read_dict
from labs.lab_networks import unet3d

TISSUE, KIDNEY, TUMOUR = "gravel", "tissue", "brick"
KIDNEYS = 2
SHIFT = 2  # pixels from one layer to the next


@dataclass(frozen=True)
class Recipe:
    """What the set is made of. Equal recipes make equal volumes."""

    volumes: int = 8
    side: int = 144  # voxels: training takes a part of 128
    seed: int = 0
    version: int = 1


def ensure(root: Path | None = None, recipe: Recipe = Recipe()) -> Path:
    """The folder of the volumes, made now if it is not there whole: in seconds.

    Raises:
        DataError: the folder cannot be written, or holds something else.
    """
    own = default_set.default_root().resolve()
    return default_set.ensure_whole(
        (root or own.with_name(f"{own.name}-volumes")).resolve(),
        is_whole=lambda folder: is_whole(folder, recipe),
        fill=lambda folder: _fill(folder, recipe),
        needs_mb=50,
        what="volumes",
    )


def is_whole(root: Path, recipe: Recipe) -> bool:
    """True if the set of this recipe is there, with all its volumes."""
    whole = read_dict(root / MANIFEST).get("recipe") == asdict(recipe)
    return whole and len([*root.glob("[!.]*.npy")]) == recipe.volumes


def _fill(root: Path, recipe: Recipe) -> None:
    def write(number: int) -> None:
        random = np.random.default_rng([recipe.seed, number])
        np.save(root / f"{number:03d}.npy", composed(recipe.side, random))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, range(recipe.volumes)))
    write_manifest(root, {"recipe": asdict(recipe)})


def composed(side: int, random: np.random.Generator) -> np.ndarray:
    """Bytes of shape (2, side, side, side): how bright a voxel is, and which kind."""
    places = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij")).astype(np.float32)
    bright, kind = _texture(TISSUE, side, random), np.zeros([side] * 3, np.uint8)
    for number in range(KIDNEYS):
        radii = side * random.uniform(0.12, 0.22, 3)
        centre = side * random.uniform(0.3, 0.7, 3)
        bright, kind = _placed(bright, kind, KIDNEY, 1, centre, radii, places, random)
        if number == 0:
            at = centre + radii * random.uniform(-0.4, 0.4, 3)
            ball = np.full(3, radii.min() * 0.5)
            bright, kind = _placed(bright, kind, TUMOUR, 2, at, ball, places, random)
    return np.stack([bright, kind])


def _placed(bright, kind, name, number, centre, radii, places, random):
    """The volume with one more ellipsoid in it."""
    away = (places - centre.reshape(3, 1, 1, 1)) / radii.reshape(3, 1, 1, 1)
    inside = (away**2).sum(0) < 1
    texture = _texture(name, len(kind), random)
    return np.where(inside, texture, bright), np.where(inside, np.uint8(number), kind)


def _texture(name: str, side: int, random: np.random.Generator) -> np.ndarray:
    """A volume of which each layer is a photograph, moved by a few pixels."""
    photo = np.asarray(photograph(name).convert("L"))
    top, left = (int(random.integers(whole)) for whole in photo.shape)
    down = (top + np.arange(side)) % photo.shape[0]
    along = (left + SHIFT * np.arange(side)[:, None] + np.arange(side)) % photo.shape[1]
    return np.ascontiguousarray(photo[down][:, along].transpose(1, 0, 2))


class Volumes(Dataset):
    """A random part of a volume, (1, side, side, side) and normalised, and each voxel's kind."""

    def __init__(self, root: Path, side: int = unet3d.VOXELS) -> None:
        self.paths, self.side = sorted(root.glob("[!.]*.npy")), side

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        whole = map_array(self.paths[index])
        room = whole.shape[1] - self.side
        begins = torch.randint(room + 1, (3,)).tolist()
        part = whole[(slice(None), *(slice(at, at + self.side) for at in begins))]
        with one_thread():
            bright, kind = torch.from_numpy(np.ascontiguousarray(part))
            bright = bright.float()
            return ((bright - bright.mean()) / (bright.std() + 1e-5))[None], kind.long()
