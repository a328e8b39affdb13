"""Measure how fast a rung trains ResNet-50 by the source of its images, on one GPU and on several.

    python -m research.feeding OUT.jsonl --gpus 1 4 --rung algebra

Each row is a run of 256 images per GPU; its means and medians are over the steps after warm-up. For
the data, first run `course data`, and `course data --as raw` and `--as small`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from course import launch, rung
from course.config import FULL_SIZE
from labs.scaling.configs import FROM_FILES

# By source of the images: the changes of the config. Workers of gpu_decode only read files.
SOURCES = {
    "synthetic": FULL_SIZE,
    "raw": FROM_FILES | {"format": "raw", "workers": 8},
    "small": FROM_FILES | {"format": "small", "workers": 12},
    "gpu_decode": FROM_FILES,
}


def main() -> None:
    """Run the plan, one run after another, and append a row per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1])
    parser.add_argument("--rung", default="algebra")
    parser.add_argument("--only", choices=SOURCES, nargs="+", default=[*SOURCES])
    options = parser.parse_args()
    for gpus in options.gpus:
        for source in options.only:
            sizes = SOURCES[source] | {"batch_size": 256 * gpus}
            config = rung(options.rung, **sizes, rung=f"{options.rung}-{source}")
            run = launch("solutions/train.py", config, gpus=gpus)
            run.wait(check=False)
            measured = run.steps[run.steps["step"] >= config.warmup_steps]
            row = {"source": source, "rung": options.rung, "workers": config.workers, "gpus": gpus}
            row |= {"status": run.status, "machine": run.record.machine}
            row |= {"images_per_s": run.record.images_per_s}
            row["step_mean_ms"] = 1e3 * measured["step_s"].mean()
            for part in ("step_s", "load_s", "forward_s", "backward_s"):
                row[part.replace("_s", "_ms")] = 1e3 * measured[part].median()
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
