"""Run solutions/train.py, and write when its loader loads each image and when its steps are.

It trains a narrow network.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import course.data.loader as loader
from course.runs.run import PROJECT
from course.training.meter import Meter

here = Path.cwd()
sets, steps = loader.image_sets, Meter.steps


class Noting:
    """A set of images that writes to a file when each is loaded."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        time.sleep(0.03)  # otherwise a worker that is not paused would finish too early
        with (here / "loaded.txt").open("a") as file:
            file.write(f"{time.monotonic()}\n")
        return image


def noting_sets(cfg):
    image_sets = sets(cfg)
    return replace(image_sets, train=Noting(image_sets.train))


def noting_steps(self, batches, epoch):
    began = None
    with (here / "spans.jsonl").open("a") as spans:
        for batch in steps(self, batches, epoch):
            began = time.monotonic()
            yield batch
            time.sleep(0.05)  # long enough for a worker of the other run to interfere
            spans.write(json.dumps([began, time.monotonic()]) + "\n")


sys.path.insert(0, str(PROJECT / "tests" / "scripts"))
import narrow  # noqa: E402 - where the run's folder holds this script, it is found only now

narrow.use()
loader.image_sets, Meter.steps = noting_sets, noting_steps
script = PROJECT / "solutions" / "train.py"
exec(compile(script.read_text(), str(script), "exec"))
