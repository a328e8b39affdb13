"""Boxes: photographs on other photographs, so that objects have a place, for SSD300.

COCO has 25 GB and may not be handed on here. So each image is a photograph's texture, with one to
six crops of other photographs on it; the object is the crop, its label which photograph.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import v2

from course.data import default_set
from course.data.default_set import MANIFEST, photograph, write_manifest
from course.data.images import normalised, one_thread, open_image
from course.runs.files import read_dict
from labs.lab_networks import ssd

GROUNDS = ("brick", "grass", "gravel", "galaxies")
OBJECTS = tuple(name for name in default_set.PHOTOGRAPHS if name not in GROUNDS)
SIZE = (640, 480)  # width and height; COCO's commonest
MOST = 6  # objects of an image
SIDES = (60, 260)  # of an object, in pixels
BOXES = "boxes.json"


@dataclass(frozen=True)
class Recipe:
    """What the set is made of. Equal recipes make equal images."""

    images: int = 256
    seed: int = 0
    version: int = 1


def ensure(root: Path | None = None, recipe: Recipe = Recipe()) -> Path:
    """The folder of the images with boxes, made now if it is not there whole: in seconds.

    Raises:
        DataError: the folder cannot be written, or holds something else.
    """
    own = default_set.default_root().resolve()
    return default_set.ensure_whole(
        (root or own.with_name(f"{own.name}-boxes")).resolve(),
        is_whole=lambda folder: is_whole(folder, recipe),
        fill=lambda folder: _fill(folder, recipe),
        needs_mb=40,
        what="images with boxes",
    )


def is_whole(root: Path, recipe: Recipe) -> bool:
    """True if the set of this recipe is there, with all its images."""
    whole = read_dict(root / MANIFEST).get("recipe") == asdict(recipe)
    return whole and len([*root.glob("[!.]*.jpg")]) == recipe.images


def _fill(root: Path, recipe: Recipe) -> None:
    def write(number: int) -> list[dict[str, Any]]:
        image, objects = composed(np.random.default_rng([recipe.seed, number]))
        image.save(root / f"{number:05d}.jpg", quality=90)
        return objects

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [*pool.map(write, range(recipe.images))]
    known = {f"{number:05d}.jpg": objects for number, objects in enumerate(found)}
    (root / BOXES).write_text(json.dumps(known))
    write_manifest(root, {"recipe": asdict(recipe)})


def composed(random: np.random.Generator) -> tuple[Image.Image, list[dict[str, Any]]]:
    """An image and its objects: [{"label": from 1, "box": [left, top, right, bottom]}, …].

    A later object may hide a part of an earlier one, as in life.
    """
    image = _crop(str(random.choice(GROUNDS)), SIZE, random)
    objects = []
    for _ in range(random.integers(1, MOST + 1)):
        size = tuple(int(side) for side in random.integers(*SIDES, size=2))
        left, top = (int(random.integers(0, whole - side)) for whole, side in zip(SIZE, size))
        label = int(random.integers(len(OBJECTS)))
        image.paste(_crop(OBJECTS[label], size, random), (left, top))
        box = [left, top, left + size[0], top + size[1]]
        objects.append({"label": label + 1, "box": box})
    return image, objects


def _crop(name: str, size: tuple[int, int], random: np.random.Generator) -> Image.Image:
    """A random part of a photograph, as large as may be in this shape."""
    photo = photograph(name)
    scale = random.uniform(0.6, 1.0) * min(photo.width / size[0], photo.height / size[1])
    width, height = (max(1, int(side * scale)) for side in size)
    left = int(random.integers(0, photo.width - width + 1))
    top = int(random.integers(0, photo.height - height + 1))
    return photo.resize(size, Image.Resampling.BILINEAR, (left, top, left + width, top + height))


class Boxes(Dataset):
    """Images of 300 × 300 pixels, and what their objects ask of each default box (`ssd.encoded`).

    An image is decoded, flipped by chance, made smaller and normalised when it is asked for.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known = json.loads((root / BOXES).read_text())
        self.names = sorted(self.known)
        self.defaults = ssd.default_boxes()
        self.smaller = v2.Resize((ssd.PX, ssd.PX))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        name = self.names[index]
        with one_thread():
            image = open_image(str(self.root / name))
            places = torch.tensor([each["box"] for each in self.known[name]], dtype=torch.float32)
            labels = torch.tensor([each["label"] for each in self.known[name]])
            places *= ssd.PX / torch.tensor([image.shape[2], image.shape[1]] * 2)
            image = self.smaller(image)
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
                places[:, [0, 2]] = ssd.PX - places[:, [2, 0]]
            return normalised(image[None])[0], ssd.encoded(places, labels, self.defaults)
