"""The lab's checks and recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course import Config, Run, rung
from course.lab import CHOICES, FULL_SIZE, Exercise, Lab, Recording, configs
from labs.dataloader.lab import SMALL, fit_workers

# While the network compiles, workers load batches ahead. Warm-up is twice as long as these last,
# and the measured part four times.
FORMAT_SETTINGS: dict[str, Any] = {
    "batch_size": 256,
    "epochs": 1,
    "steps": 640,
    "warmup_steps": 192,
    "val_steps": 0,
}

# One of 16 cores is left to the process that launches kernels.
FED = FORMAT_SETTINGS | configs.PINNED_WORKERS | {"workers": 15}
SHORTER = FED | {"steps": 240, "warmup_steps": 120}


def format_configs(quick: bool, site: str) -> list[Config]:
    """Return the notebook's runs, one per format that this machine decodes, or as recorded."""
    from torch import accelerator  # which would slow down the list of labs

    recorded = site.startswith("recorded-")
    quick = quick and not recorded
    base, settings = ("compile", FED) if recorded else ("dataloader", SHORTER)
    settings = SMALL if quick else fit_workers(settings, site)
    has_gpu = recorded or accelerator.is_available()
    names = [name for name in CHOICES["format"] if has_gpu or name != "gpu_decode"]
    return [rung(base, quick=quick, **settings, format=name, rung=name) for name in names]


def _format_configs() -> Iterator[Config]:
    """Yield synthetic images, each format with all cores and with few, and what one core loads."""
    yield rung("compile", **FULL_SIZE | {"steps": 160, "warmup_steps": 40, "rung": "synthetic"})
    for name in CHOICES["format"]:
        yield rung("compile", **FED, format=name, rung=name)
    for name, workers in (("files", 16), ("raw", 4), ("gpu_decode", 4), ("small", 8)):
        label = f"{name}-{workers}"
        yield rung("compile", **FED | {"workers": workers, "format": name, "rung": label})
    one_core = FORMAT_SETTINGS | {"steps": 28, "warmup_steps": 4, "workers": 0}
    for name in ("files", "shards", "small", "raw"):
        yield rung("channels_last", **one_core, format=name, rung=f"{name}-alone")


def _describe_readers(run: Run) -> str:
    return "several workers read small shards, and each image once, also on 2 ranks"


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
        title="each worker reads its own shards",
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
    minutes=80,
    exercises=EXERCISES,
    recordings=(Recording("formats", [*_format_configs()]),),
    jobs="3, of 6 or 7 runs",
    prepare="`course data --as`, once, for a set of your own",
    stuck="a class follows its image in the tar file; `get_worker_info()` is None without workers",
)
