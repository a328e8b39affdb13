"""Lab 3.1: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.checks import dry_runs as rehearsals
from course.checks.lab import FULL_SIZE, Lab, Mechanism, Recording
from course.config import CHOICES, Config, rung
from course.runs.run import Run
from labs.day2_3_scaling.configs import PINNED_WORKERS

# Of a step's loss: a stream has its own order, so both runs see other images. ResNet-18, a small
# step, and few of them, so that what differs does not grow. How images are read is the same in each
# precision.
OTHER_IMAGES = 0.2

READ: dict[str, Any] = {
    "model": "resnet18",
    "image_px": 64,
    "batch_size": 16,
    "steps": 8,
    "lr": 0.001,
    "budget_s": 0.0,
    "workers": 2,
    "precision": "fp32",
}


def _read_seen(run: Run) -> str:
    return (
        f"images came as a stream out of tar files, to {run.config.workers} workers; all images of "
        f"{rehearsals.SHARDS} small shards come once, each with its class"
    )


def _shared_seen(run: Run) -> str:
    return (
        f"{rehearsals.RANKS_READING} ranks of {rehearsals.WORKERS} workers read "
        f"{rehearsals.SHARDS} small shards: all images, none twice"
    )


# Batches that workers made ahead while the network was compiled are soon used up: warm-up is
# twice as long as they last, and what is measured four times.
FORMAT_SETTINGS: dict[str, Any] = {
    "batch_size": 256,
    "epochs": 1,
    "steps": 640,
    "warmup_steps": 192,
    "val_steps": 0,
}

CORE = {"steps": 28, "warmup_steps": 4, "workers": 0}  # of one that loads, and trains in turn


def _formats() -> Iterator[Config]:
    """Each format beside synthetic images, with all cores and with few; and what a core loads."""
    yield rung("compile", **FULL_SIZE | {"steps": 160, "warmup_steps": 40, "rung": "synthetic"})
    fed = (
        FORMAT_SETTINGS | PINNED_WORKERS | {"workers": 15}
    )  # of 16 cores: one is left to what feeds the GPU
    for name in CHOICES["format"]:
        yield rung("compile", **fed, format=name, rung=name)
    for name, workers in (("files", 16), ("raw", 4), ("gpu_decode", 4), ("small", 8)):
        own = {"workers": workers, "format": name, "rung": f"{name}-{workers}"}
        yield rung("compile", **fed | own)
    for name in ("files", "shards", "small", "raw"):
        yield rung("channels_last", **FORMAT_SETTINGS | CORE, format=name, rung=f"{name}-alone")


CHECKS = {
    "day3.shards": Mechanism(
        title="images come out of tar files",
        todo=10,
        rung="shards",
        against="dataloader",
        seen=_read_seen,
        word="images_of",
        rehearsed=rehearsals.reading,
        settings=READ,
        tolerance=OTHER_IMAGES,
        timed=False,
    ),
    "day3.shares": Mechanism(
        title="each worker of each rank reads shards of its own",
        todo=11,
        rung="shards",
        against="dataloader",
        seen=_shared_seen,
        word="own_shards",
        rehearsed=rehearsals.sharing,
        settings=READ,
        tolerance=OTHER_IMAGES,
        timed=False,
    ),
}

LAB = Lab(
    number="3.1",
    title="where the images lie, and who decodes them",
    minutes=75,
    checks=CHECKS,
    recordings=(Recording("formats", [*_formats()]),),
    jobs="5, of 9 runs",
    prepare="`course data --as`, once, for a set of your own",
    stuck="the class follows its image in the tar file; a rank knows nothing of its workers' "
    "numbers",
)
