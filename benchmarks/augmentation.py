"""What augmenting a batch of 256 costs a GPU, in milliseconds: mixing, and RandAugment.

    python benchmarks/augmentation.py [MACHINE]

Prints them as JSON; of a MACHINE in course/recorded it writes them into its index.json.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from typing import Any

import torch

from course.data.augment import randaugmented
from course.data.images import normalised
from course.runs.files import write_atomically
from course.runs.recordings import INDEX
from course.runs.run import RECORDED
from course.topics import augmentation

IMAGES, CLASSES, PX = 256, 16, 224


def measured(device: torch.device) -> dict[str, Any]:
    """Each way's median milliseconds for a batch, in turns."""
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (IMAGES, 3, PX, PX), dtype=torch.uint8, device=device)
    images, labels = normalised(pixels), torch.eye(CLASSES, device=device)
    labels = labels[torch.arange(IMAGES) % CLASSES]
    script = augmentation.script_functions("solutions/train.py")
    ways = {
        "mixup": lambda: script.mixup(images, labels, 1.0),
        "cutmix": lambda: script.cutmix(images, labels, 1.0),
        "cutmix_loop": lambda: augmentation.one_by_one(images, labels, 1.0),
        "randaugment": lambda: randaugmented(pixels),
    }
    table = augmentation.in_turns(ways, device, rounds=15)
    return {
        "images": IMAGES,
        "image_px": PX,
        "date": str(date.today()),
        "torch": torch.__version__,
        "command": "python benchmarks/augmentation.py",
        "ms": {row.way: round(row.ms, 3) for row in table.itertuples()},
    }


def main() -> None:
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    found = measured(device)
    print(json.dumps(found, indent=1))
    if len(sys.argv) > 1:
        path = RECORDED / sys.argv[1] / INDEX
        saved = json.loads(path.read_text()) | {"augmentation": found}
        write_atomically(path, json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
