"""Measure how fast a compiled ResNet-50 trains on several GPUs, by the source of its images.

    python -m research.feeding_four_gpus OUT.jsonl --gpus 4

Each row is a run of 256 images per GPU. For the data, first run `course data` and
`course data --as raw`.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from course import launch, rung
from course.config import FULL_SIZE
from labs.scaling.configs import FROM_FILES

PRIORITY = "TORCH_NCCL_HIGH_PRIORITY"
# Source of the images, changes of the config, value of PRIORITY, seed (for a run of its own).
PLAN = (
    ("gpu_decode", FROM_FILES, "0", 0),
    ("synthetic", FULL_SIZE, "0", 0),
    ("gpu_decode", FROM_FILES, "1", 1),
    ("synthetic", FULL_SIZE, "1", 1),
    ("raw", FROM_FILES | {"format": "raw"}, "0", 2),
    ("gpu_decode", FROM_FILES, "0", 3),
)


def main() -> None:
    """Run the plan, one run after another, and append a row per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, default=4)
    options = parser.parse_args()
    for source, sizes, priority, seed in PLAN:
        os.environ[PRIORITY] = priority
        sizes = sizes | {"batch_size": 256 * options.gpus, "seed": seed}
        config = rung("compile", **sizes, rung=f"compile-{source}")
        run = launch("solutions/train.py", config, gpus=options.gpus)
        run.wait(check=False)
        measured = run.steps[run.steps["step"] >= config.warmup_steps]
        row = {"source": source, "nccl_priority": priority, "gpus": options.gpus}
        row |= {"status": run.status, "machine": run.record.machine}
        row["images_per_s"] = run.record.images_per_s
        for part in ("step_s", "load_s", "forward_s", "backward_s"):
            row[part.replace("_s", "_ms")] = 1e3 * measured[part].median()
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)


if __name__ == "__main__":
    main()
