"""Images with boxes for SSD300: crops of photographs pasted on other photographs.

COCO has 25 GB and may not be redistributed. Here an image is a photograph's texture with one to six
crops of other photographs; a crop is an object, and its photograph is the label.
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
SIZE = (640, 480)  # width and height; COCO's most frequent
MAX_OBJECTS = 6
SIDES = (60, 260)  # of an object, in pixels
BOXES = "boxes.json"


@dataclass(frozen=True)
class Recipe:
    """The parameters of the set. Equal recipes give equal images."""

    images: int = 256
    seed: int = 0
    version: int = 1


def ensure(root: Path | None = None, recipe: Recipe = Recipe()) -> Path:
    """Return the folder of the images; create them in seconds if they are incomplete.

    Raises:
        DataError: the folder cannot be written, or contains something else.
    """
    return ensure_set(root, recipe, "boxes", "jpg", recipe.images, _fill, 40)


def ensure_set(
    root: Path | None,
    recipe: Any,
    name: str,
    suffix: str,
    count: int,
    fill: Any,
    needs_mb: int,
) -> Path:
    """Return the folder of a set next to the default set; fill it if it is incomplete."""
    default = default_set.default_root().resolve()

    def is_complete(folder: Path) -> bool:
        same = read_dict(folder / MANIFEST).get("recipe") == asdict(recipe)
        return same and len([*folder.glob(f"[!.]*.{suffix}")]) == count

    def fill_and_sign(folder: Path) -> None:
        fill(folder, recipe)
        write_manifest(folder, {"recipe": asdict(recipe)})

    folder = root or default.with_name(f"{default.name}-{name}")
    options = {"is_complete": is_complete, "fill": fill_and_sign, "needs_mb": needs_mb}
    return default_set.ensure_complete(folder.resolve(), what=name, **options)


def _fill(root: Path, recipe: Recipe) -> None:
    def write(number: int) -> list[dict[str, Any]]:
        image, objects = compose(np.random.default_rng([recipe.seed, number]))
        image.save(root / f"{number:05d}.jpg", quality=90)
        return objects

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [*pool.map(write, range(recipe.images))]
    by_file = {f"{number:05d}.jpg": boxes for number, boxes in enumerate(objects)}
    (root / BOXES).write_text(json.dumps(by_file))


def compose(random: np.random.Generator) -> tuple[Image.Image, list[dict[str, Any]]]:
    """Compose an image; return it and its objects: label (from 1), box (left, top, right, bottom).

    A later object may hide a part of an earlier one.
    """
    image = _crop(str(random.choice(GROUNDS)), SIZE, random)
    objects = []
    for _ in range(random.integers(1, MAX_OBJECTS + 1)):
        size = tuple(int(side) for side in random.integers(*SIDES, size=2))
        left, top = (int(random.integers(0, full - side)) for full, side in zip(SIZE, size))
        label = int(random.integers(len(OBJECTS)))
        image.paste(_crop(OBJECTS[label], size, random), (left, top))
        box = [left, top, left + size[0], top + size[1]]
        objects.append({"label": label + 1, "box": box})
    return image, objects


def _crop(name: str, size: tuple[int, int], random: np.random.Generator) -> Image.Image:
    """Return a random, large part of a photograph in this size."""
    photo = photograph(name)
    scale = random.uniform(0.6, 1.0) * min(photo.width / size[0], photo.height / size[1])
    width, height = (max(1, int(side * scale)) for side in size)
    left = int(random.integers(0, photo.width - width + 1))
    top = int(random.integers(0, photo.height - height + 1))
    return photo.resize(size, Image.Resampling.BILINEAR, (left, top, left + width, top + height))


class Boxes(Dataset):
    """Normalised images of 300 × 300 pixels, flipped at random, with targets (`ssd.encode`)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = json.loads((root / BOXES).read_text())
        self.names = sorted(self.objects)
        self.defaults = ssd.default_boxes()
        self.resize = v2.Resize((ssd.PX, ssd.PX))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        objects = self.objects[self.names[index]]
        with one_thread():
            image = open_image(str(self.root / self.names[index]))
            boxes = torch.tensor([box["box"] for box in objects], dtype=torch.float32)
            labels = torch.tensor([box["label"] for box in objects])
            boxes *= ssd.PX / torch.tensor([image.shape[2], image.shape[1]] * 2)
            image = self.resize(image)
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
                boxes[:, [0, 2]] = ssd.PX - boxes[:, [2, 0]]
            return normalised(image[None])[0], ssd.encode(boxes, labels, self.defaults)
