"""Time and memory to list a large folder of images, and to draw from it with worker processes.

Run it twice, first with `--make` on an empty folder: python -m research.listing FOLDER [--make].
It makes 1,000 class folders with 1,280 hard links each to eight JPEG files of the default set, and
50 in val/. Memory is PSS, which divides shared pages by the number of processes, so that the sum is
what all processes take. Compare it with that of the default set, whose list is tiny.
"""

import argparse
import os
import time
from pathlib import Path

import psutil
import torch

from course.config import rung
from course.data import default_set, image_sets, loaders

WORKERS, BATCHES = 4, 150


def make(root: Path, classes: int = 1000) -> None:
    """Make the folder. A file can have some 65,000 hard links."""
    files = sorted(default_set.ensure().glob("train/*/*.jpg"))[:8]
    for split, count in (("train", 1280), ("val", 50)):
        for label in range(classes):
            folder = root / split / f"n{1440764 + label:08d}"
            folder.mkdir(parents=True)
            for number in range(count):
                link = label * count + number
                source = root / f"{split}-{link // 50000}-{link % 8}.jpg"
                if not source.exists():
                    source.write_bytes(files[link % 8].read_bytes())
                os.link(source, folder / f"{folder.name}_{number}.JPEG")


def memory_mb() -> dict[str, float]:
    """Return the PSS of this process and its children, in MB: mapped lists, and private memory."""
    main, mb = psutil.Process(), {"mapped_mb": 0.0, "private_mb": 0.0}
    for process in (main, *main.children(True)):
        for area in process.memory_maps():
            mb["mapped_mb"] += area.pss / 1e6 * area.path.endswith(".npy")
            mb["private_mb"] += area.pss / 1e6 * (area.path in ("[heap]", "[anon]"))
    return mb


def measure(**data: str) -> dict[str, float]:
    """Return the seconds to open a set, and the MB while it is shuffled and loaded."""
    cfg = rung("baseline", quick=True, batch_size=64, image_px=32, steps=BATCHES + 20, **data)
    begin = time.perf_counter()
    sets = image_sets(cfg)
    opened = time.perf_counter()
    batches, _ = loaders(sets, cfg, torch.device("cpu"), num_workers=WORKERS)
    for number, _ in enumerate(batches):
        if number == 0:
            first = time.perf_counter()
        if number == BATCHES:
            return {
                "images": len(sets.train),
                "open_s": opened - begin,
                "first_batch_s": first - opened,
            } | memory_mb()
    raise AssertionError


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", action="store_true")
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.folder)
    for data in ({"data": "default"}, {"data": "imagenet", "data_root": str(arguments.folder)}):
        print(measure(**data), flush=True)
