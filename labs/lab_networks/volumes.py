"""Volumes for the 3D U-Net: ellipsoids of one photograph's texture within another's.

KiTS19 has 17 GB of patients' scans. Here a photograph is the tissue, shifted a little from layer to
layer; "kidneys" are ellipsoids with the texture of a second one, and a "tumour" in the first kidney
is a ball of a third.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from course.data.default_set import photograph
from course.data.formats.raw import map_array
from course.data.images import one_thread
from labs.lab_networks import unet3d
from labs.lab_networks.boxes import ensure_set

TISSUE, KIDNEY, TUMOUR = "gravel", "tissue", "brick"
KIDNEYS = 2
SHIFT = 2  # pixels from one layer to the next


@dataclass(frozen=True)
class Recipe:
    """The parameters of the set. Equal recipes give equal volumes."""

    volumes: int = 8
    side: int = 144  # voxels; training takes a part of 128
    seed: int = 0
    version: int = 1


def ensure(root: Path | None = None, recipe: Recipe = Recipe()) -> Path:
    """Return the folder of the volumes; create them in seconds if they are incomplete.

    Raises:
        DataError: the folder cannot be written, or contains something else.
    """
    return ensure_set(root, recipe, "volumes", "npy", recipe.volumes, _fill, 50)


def _fill(root: Path, recipe: Recipe) -> None:
    def write(number: int) -> None:
        random = np.random.default_rng([recipe.seed, number])
        np.save(root / f"{number:03d}.npy", compose(recipe.side, random))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, range(recipe.volumes)))


def compose(side: int, random: np.random.Generator) -> np.ndarray:
    """Compose a volume, bytes of shape (2, side, side, side): brightness and kind of each voxel."""
    positions = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij")).astype(np.float32)
    volume = np.stack([_texture(TISSUE, side, random), np.zeros([side] * 3, np.uint8)])

    def place(name: str, kind: int, centre: np.ndarray, radii: np.ndarray) -> None:
        distance = (positions - centre.reshape(3, 1, 1, 1)) / radii.reshape(3, 1, 1, 1)
        inside = (distance**2).sum(0) < 1
        volume[0][inside] = _texture(name, side, random)[inside]
        volume[1][inside] = kind

    for number in range(KIDNEYS):
        radii = side * random.uniform(0.12, 0.22, 3)
        centre = side * random.uniform(0.3, 0.7, 3)
        place(KIDNEY, 1, centre, radii)
        if number == 0:
            centre = centre + radii * random.uniform(-0.4, 0.4, 3)
            place(TUMOUR, 2, centre, np.full(3, radii.min() * 0.5))
    return volume


def _texture(name: str, side: int, random: np.random.Generator) -> np.ndarray:
    """Return a volume whose layers are a photograph, shifted by a few pixels each."""
    photo = np.asarray(photograph(name).convert("L"))
    top, left = (int(random.integers(length)) for length in photo.shape)
    rows = (top + np.arange(side)) % photo.shape[0]
    columns = (left + SHIFT * np.arange(side)[:, None] + np.arange(side)) % photo.shape[1]
    return photo[rows][:, columns].transpose(1, 0, 2)


class Volumes(Dataset):
    """Random parts of volumes, (1, side, side, side) and normalised, and the kind of each voxel."""

    def __init__(self, root: Path, side: int = unet3d.VOXELS) -> None:
        self.paths, self.side = sorted(root.glob("[!.]*.npy")), side

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        volume = map_array(self.paths[index])
        begins = torch.randint(volume.shape[1] - self.side + 1, (3,)).tolist()
        part = volume[(slice(None), *(slice(begin, begin + self.side) for begin in begins))]
        with one_thread():
            brightness, kinds = torch.from_numpy(np.ascontiguousarray(part))
            brightness = brightness.float()
            brightness = (brightness - brightness.mean()) / (brightness.std() + 1e-5)
            return brightness[None], kinds.long()
