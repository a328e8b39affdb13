"""How it is seen that a TODO of Day 3 works: shards are read whole, by each reader its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.config import Config, rung
from course.days import rehearsals
from course.days.day2 import FED
from course.days.lab import BUSY, Lab, Mechanism, Place, Recording, chosen
from course.runs.run import Run

# Of a step's loss: a stream has its own order, so both runs see other images. ResNet-18, a small
# step, and few of them, so that what differs does not grow.
OTHER_IMAGES = 0.2
READ: dict[str, Any] = {
    "model": "resnet18", "image_px": 64, "batch_size": 16, "steps": 8, "lr": 0.001, "budget_s": 0.0,
    "workers": 2,
}  # fmt: skip


def _no_time(cfg: Config, place: Place) -> str:
    return "files that lie in memory are opened at no cost"


def _read_seen(run: Run) -> str:
    return (
        f"images came as a stream out of tar files, to {run.config.workers} workers; all images of "
        f"8 small shards come once, each with its class"
    )


def _shared_seen(run: Run) -> str:
    return "two ranks of two workers read 8 small shards: all images, none twice, equal shares"


DAY3 = {
    "day3.shards": Mechanism(
        "images come out of tar files", 10, "shards", "dataloader",
        _read_seen, _no_time, "images_of", lambda run: run.config.format == "shards",
        rehearsed=rehearsals.reading, settings=READ, tolerance=OTHER_IMAGES, timed=False,
    ),
    "day3.shares": Mechanism(
        "each worker of each rank reads shards of its own", 11, "shards", "dataloader",
        _shared_seen, _no_time, "own_shards",
        lambda run: run.config.format == "shards" and run.config.workers > 1,
        rehearsed=rehearsals.sharing, settings=READ, tolerance=OTHER_IMAGES, timed=False,
    ),
}  # fmt: skip


# Batches that workers made ahead while the network was compiled are soon used up: warm-up is
# twice as long as they last, and what is measured four times.
STORED: dict[str, Any] = {
    "batch_size": 256, "epochs": 1, "steps": 640, "warmup_steps": 192, "val_steps": 0,
}  # fmt: skip
FORMATS = ("files", "shards", "small", "raw", "gpu_decode")
CORE = {"steps": 28, "warmup_steps": 4, "workers": 0}  # of one that loads, and trains in turn


def _formats() -> Iterator[Config]:
    """Each format beside synthetic images, with all cores and with few; and what a core loads."""
    yield rung("compile", **BUSY | {"steps": 160, "warmup_steps": 40, "rung": "synthetic"})
    fed = STORED | FED | {"workers": 16}
    for name in FORMATS:
        yield rung("compile", **fed, format=name, rung=name)
    for name, workers in (("raw", 4), ("gpu_decode", 4), ("small", 8)):
        own = {"workers": workers, "format": name, "rung": f"{name}-{workers}"}
        yield rung("compile", **fed | own)
    for name in ("files", "shards", "small", "raw"):
        yield rung("channels_last", **STORED | CORE, format=name, rung=f"{name}-alone")


LABS: tuple[Lab, ...] = (
    Lab(
        "3.1", "day3_1_formats", "where the images lie, and who decodes them", 75, "day3_1",
        chosen(DAY3, "day3.shards", "day3.shares"),
        recordings=(Recording("formats", [*_formats()]),),
        jobs="2, of 4 and of 2 runs", prepare="`course data --as` for a set of your own: it takes "
        "hours, once", stuck="the class follows its image in the tar file; a rank knows nothing of "
        "its workers' numbers",
    ),
)  # fmt: skip
