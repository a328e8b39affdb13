"""What the labs beside the days show of a GPU: solutions of A·x = b, kernels, a network's answers.

    python -m benchmarks.side_labs OUT.json [refinement] [kernels] [inference]

Four to six minutes on an H100. Each part goes into course/recorded/MACHINE/index.json under its
name.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

import torch

from course.topics.inference import measured as inference
from course.topics.kernels import measured as kernels
from course.topics.refinement import measured as refinement
from course.training.recorder import Recorder

PARTS = {
    "refinement": refinement.measure,
    "kernels": kernels.measure,
    "inference": inference.measure,
}


def main(out: str, *names: str) -> None:
    """Measure the parts that are named, or all, and write what is there after each."""
    known = {
        "machine": Recorder(None).describe(torch.device("cuda"))["machine"],
        "date": date.today().isoformat(),
        "torch": torch.__version__,
    }
    found = {}
    for name in names or PARTS:
        found[name] = known | PARTS[name]()
        Path(out).write_text(json.dumps(found, indent=1) + "\n")
        print(name, len(found[name]["rows"]), "rows", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
