"""The default set: real JPEG files in ImageNet's folder layout, created on first use.

ImageNet must not be redistributed, and a course must start without a download. So each class is one
of 16 photographs that scikit-image and scikit-learn ship, and each file is a random crop of it,
flipped, recoloured and saved as JPEG in ImageNet's sizes (median about 500 × 375 pixels and
110 kB). Decoding takes as long as on ImageNet, and accuracy really rises. The set does not measure
generalisation, because validation crops are from the same photographs.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from PIL import Image, ImageEnhance, ImageOps
from tqdm import tqdm

from course.data.folders import DataError, default_root
from course.runs import trust
from course.runs.files import read_dict
from trainspeed.resources import core_count

ELSEWHERE = "\nOr set COURSE_DATA, or --to, to a folder of yours"
PHOTOGRAPHS = {
    "astronaut": "skimage/data/astronaut.png",
    "brick": "skimage/data/brick.png",
    "cameraman": "skimage/data/camera.png",
    "cat": "skimage/data/chelsea.png",
    "coffee": "skimage/data/coffee.png",
    "coins": "skimage/data/coins.png",
    "flower": "sklearn/datasets/images/flower.jpg",
    "galaxies": "skimage/data/hubble_deep_field.jpg",
    "grass": "skimage/data/grass.png",
    "gravel": "skimage/data/gravel.png",
    "moon": "skimage/data/moon.png",
    "motorcycle": "skimage/data/motorcycle_left.png",
    "retina": "skimage/data/retina.jpg",
    "rocket": "skimage/data/rocket.jpg",
    "temple": "sklearn/datasets/images/china.jpg",
    "tissue": "skimage/data/ihc.png",
}

# Width × height, and share of the files. ImageNet's photographs are from a web service that scaled
# the longer side to 500 pixels; landscape is most common, and some are larger.
SIZES = [
    ((500, 375), 0.46),
    ((375, 500), 0.14),
    ((500, 333), 0.20),
    ((333, 500), 0.06),
    ((500, 500), 0.05),
    ((640, 480), 0.06),
    ((800, 600), 0.03),
]
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Recipe:
    """The contents of the set. Equal recipes give equal bytes, with the same version of Pillow."""

    train_per_class: int = 64
    val_per_class: int = 16
    seed: int = 0
    version: int = 1

    def jobs(self) -> list[tuple[str, str, int]]:
        """Return (split, class, index) of every file."""
        counts = {"train": self.train_per_class, "val": self.val_per_class}
        return [
            (split, name, index)
            for split, count in counts.items()
            for name in PHOTOGRAPHS
            for index in range(count)
        ]


def ensure(root: Path | None = None, recipe: Recipe = Recipe()) -> Path:
    """Return the folder of the default set; create it first if it is not complete.

    Raises:
        DataError: the folder cannot be written, or contains other files.
    """
    return ensure_complete(
        (root or default_root()).resolve(),
        is_complete=lambda folder: is_complete(folder, recipe),
        fill=lambda folder: _fill(folder, recipe),
        needs_mb=200,
        what="default data set",
    )


def ensure_complete(
    root: Path,
    *,
    is_complete: Callable[[Path], bool],
    fill: Callable[[Path], None],
    what: str,
    needs_mb: int = 0,
    marker: tuple[str, str] = (MANIFEST, "recipe"),
    resumed: bool = False,
) -> Path:
    """Return the folder; fill it first if it is not complete.

    It is filled in a temporary folder, which is renamed when it is complete, under a lock. So an
    interruption leaves nothing that looks like the set, and a second process waits.

    Args:
        fill: writes everything into an empty folder, the file that marks it last.
        marker: a JSON file in the folder, and one of its keys: another folder is not replaced.
        resumed: after an interruption, `fill` gets the temporary folder unchanged.

    Raises:
        DataError: the folder cannot be written, or contains other files.
        JobError: a different account could lead what is written elsewhere.
    """
    if is_complete(root):
        return root
    partial = root.with_name(f"{root.name}.partial")
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{root}.lock", mode=0o600)
        try:
            held = lock.acquire(timeout=0)
        except Timeout:
            print(f"another process writes {root}: waiting until it ends", file=sys.stderr)
            held = lock.acquire()
        with held:
            if is_complete(root):
                return root
            has_files = root.exists() and any(root.iterdir())
            if has_files and marker[1] not in read_dict(root / marker[0]):
                raise DataError(
                    f"{root} contains files that are not the {what}, so it stays unchanged: "
                    f"move it, or set COURSE_DATA to an empty or a new folder, or name one by --to"
                )
            # Only what is examined is removed: others can move a folder of theirs there later.
            existing = [folder for folder in (root, partial) if os.path.lexists(folder)]
            for folder in (root, partial):
                trust.check_folder(folder, ELSEWHERE)
            if not resumed and partial in existing:
                shutil.rmtree(partial, ignore_errors=True)  # of a process that was interrupted
            partial.mkdir(exist_ok=True)
            trust.check_folder(partial)  # where all can create, someone may have been faster
            try:
                fill(partial)
                if root in existing:  # an older recipe, or a damaged set
                    shutil.rmtree(root, ignore_errors=True)
                partial.rename(root)
            except BaseException:
                if not resumed:
                    shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as error:
        existing = next(path for path in (root, *root.parents) if os.path.exists(path))
        free_gb = shutil.disk_usage(existing).free / 1e9
        advice = f"It needs about {needs_mb} MB;"
        if resumed:
            advice = f"What is done is kept in {partial}, and the same command goes on with it; or"
        raise DataError(
            f"cannot make the {what} in {root}: {error.strerror or error} ({free_gb:.1f} GB "
            f"free). {advice} set COURSE_DATA to a folder with room that you may write, or name "
            f"one by --to"
        ) from error
    return root


def is_complete(root: Path, recipe: Recipe = Recipe()) -> bool:
    """Return whether the set of this recipe is complete."""
    manifest = read_dict(root / MANIFEST)
    if manifest.get("recipe") != asdict(recipe):
        return False
    sizes = [path.stat().st_size for path in root.glob("[!.]*/[!.]*/[!.]*.jpg")]
    return len(sizes) == len(recipe.jobs()) and sum(sizes) == manifest.get("bytes")


def write_manifest(root: Path, about: dict[str, Any]) -> None:
    """Write the file that marks a folder as complete, with its recipe."""
    (root / MANIFEST).write_text(json.dumps(about, indent=2))


def _fill(root: Path, recipe: Recipe) -> None:
    jobs = recipe.jobs()
    for split, name, _ in jobs:
        (root / split / name).mkdir(parents=True, exist_ok=True)
    # Threads are enough: Pillow and NumPy release the interpreter's lock while they work on pixels.
    with ThreadPoolExecutor(core_count()) as pool:
        sizes = pool.map(functools.partial(_write_file, root, recipe.seed), jobs)
        try:
            total = sum(tqdm(sizes, "making the default data set", len(jobs), unit=" files"))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    write_manifest(root, {"recipe": asdict(recipe), "files": len(jobs), "bytes": total})


def _write_file(root: Path, seed: int, job: tuple[str, str, int]) -> int:
    """Write one file, and return its size."""
    split, name, index = job
    order = list(PHOTOGRAPHS).index(name)
    # One generator per file, so that the bytes do not depend on the order of threads.
    random = np.random.default_rng([seed, split == "val", order, index])
    path = root / split / name / f"{name}_{index:05d}.jpg"
    quality = int(random.integers(92, 99))
    _random_crop(photograph(name), random).save(path, quality=quality, subsampling=2)
    return path.stat().st_size


@functools.cache
def photograph(name: str) -> Image.Image:
    """Load one of PHOTOGRAPHS in RGB."""
    package, _, inside = PHOTOGRAPHS[name].partition("/")
    with Image.open(Path(find_spec(package).origin).parent / inside) as image:
        return image.convert("RGB")


def _random_crop(photo: Image.Image, random: np.random.Generator) -> Image.Image:
    """Crop a photograph to one of ImageNet's sizes, flip and recolour it, add sensor noise."""
    shares = [share for _, share in SIZES]
    width, height = SIZES[random.choice(len(SIZES), p=shares)][0]
    scale = random.uniform(0.45, 1.0) * min(photo.width / width, photo.height / height)
    crop_width, crop_height = int(width * scale), int(height * scale)
    left = int(random.integers(0, photo.width - crop_width + 1))
    top = int(random.integers(0, photo.height - crop_height + 1))
    box = (left, top, left + crop_width, top + crop_height)
    image = photo.resize((width, height), Image.Resampling.BICUBIC, box)
    if random.random() < 0.5:
        image = ImageOps.mirror(image)
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhance(image).enhance(random.uniform(0.6, 1.4))
    # Enlarged crops are smoother than photographs; without noise their files are too small.
    noise = random.integers(-14, 15, size=(image.height, image.width, 1), dtype=np.int16)
    pixels = np.asarray(image, dtype=np.int16) + noise
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
