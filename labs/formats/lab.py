"""The lab's checks and recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course import Config, Run, rung
from course.lab import CHOICES, FULL_SIZE, Exercise, Lab, Recording, configs

# While the network compiles, workers load batches ahead. Warm-up is twice as long as these last,
# and the measured part four times.
FORMAT_SETTINGS: dict[str, Any] = {
    "batch_size": 256,
    "epochs": 1,
    "steps": 640,
    "warmup_steps": 192,
    "val_steps": 0,
}


def _format_configs() -> Iterator[Config]:
    """Yield synthetic images, each format with all cores and with few, and what one core loads."""
    yield rung("compile", **FULL_SIZE | {"steps": 160, "warmup_steps": 40, "rung": "synthetic"})
    # One of 16 cores is left to the process that launches kernels.
    settings = FORMAT_SETTINGS | configs.PINNED_WORKERS | {"workers": 15}
    for name in CHOICES["format"]:
        yield rung("compile", **settings, format=name, rung=name)
    for name, workers in (("files", 16), ("raw", 4), ("gpu_decode", 4), ("small", 8)):
        label = f"{name}-{workers}"
        yield rung("compile", **settings | {"workers": workers, "format": name, "rung": label})
    one_core = FORMAT_SETTINGS | {"steps": 28, "warmup_steps": 4, "workers": 0}
    for name in ("files", "shards", "small", "raw"):
        yield rung("channels_last", **one_core, format=name, rung=f"{name}-alone")


def _describe_readers(run: Run) -> str:
    return "small shards were read by 2 ranks with several workers each, and each image once"


EXERCISES = {
    "shards": Exercise(
        title="images come out of tar files",
        configs=({"rung": "dataloader"}, {"rung": "shards"}),
        calls=("course.checks.dry_runs:reading",),
        rung="shards",
        against="dataloader",
        shows={"the DataLoader": "loader"},
        settings=configs.READER_SETTINGS,
        timed=False,
    ),
    "worker_shards": Exercise(
        title="each worker of each rank reads shards of its own",
        describe=_describe_readers,
        configs=({"rung": "dataloader"},),
        calls=("course.checks.dry_runs:sharing",),
        rung="shards",
        against="dataloader",
        shows={"the DataLoader": "loader"},
        settings=configs.READER_SETTINGS,
        timed=False,
    ),
}

LAB = Lab(
    title="data formats, and where images are decoded",
    minutes=110,
    exercises=EXERCISES,
    recordings=(Recording("formats", [*_format_configs()]),),
    jobs="5, of 8 or 9 runs",
    prepare="`course data --as`, once, for a set of your own",
    stuck="the class follows its image in the tar file; a rank does not know its workers' numbers",
)
