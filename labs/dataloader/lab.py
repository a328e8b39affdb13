"""The lab's checks and recorded runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from course import Config, rung
from course.jobs import sites
from course.lab import FULL_SIZE, Exercise, Fact, Function, FunctionCheck, Lab, Recording, configs
from labs.dataloader import mechanism
from trainspeed.resources import core_count

# As recorded. Warm-up is the first epoch and the start of the second, where workers start again: in
# an epoch of a million images, that does not count.
LOADER_SETTINGS = {
    "batch_size": 256,
    "epochs": 2,
    "steps": 56,
    "warmup_steps": 64,
    "val_steps": 0,
}

# Fewer steps, so that all jobs of the lab end within 150 s on an H100 with 16 cores. The measured
# steps are complete rounds, such as four of eight workers. A run without workers takes half a
# second per step and has no rounds, so it needs fewer.
_SHORTER = {"steps": 40, "warmup_steps": 48}
_WITHOUT_WORKERS = {"steps": 12, "warmup_steps": 16}


# In quick mode, the network is small, so that a few cores can feed it. The first epoch is warm-up.
SMALL: dict[str, Any] = {
    "model": "resnet18",
    "image_px": 64,
    "epochs": 2,
    "steps": 24,
    "warmup_steps": 24,
    "val_steps": 0,
    "budget_s": 0,
}
SYNTHETIC = {"data": "synthetic", "epochs": 1, "steps": 40, "warmup_steps": 10}


def loader_settings(
    site: str, *, quick: bool = False, workers: bool = True, synthetic: bool = False
) -> dict[str, Any]:
    """Return the size of a trial: small if quick, else as recorded, shorter on other sites.

    It has at most one worker per core of its job.

    Args:
        workers: whether the trial has any.
        synthetic: the network without a loader.
    """
    if synthetic:
        return SMALL | SYNTHETIC if quick else FULL_SIZE
    if quick:
        return SMALL
    if site.startswith("recorded-"):
        return LOADER_SETTINGS
    if not workers:
        return LOADER_SETTINGS | _WITHOUT_WORKERS
    # PyTorch warns of more workers than cores, for which the lab's rule doesn't hold, either.
    count = min(rung("dataloader").workers, _job_cores(site))
    partial_round = (2 * _SHORTER["steps"] - _SHORTER["warmup_steps"]) % count
    warmup_steps = _SHORTER["warmup_steps"] + partial_round
    return LOADER_SETTINGS | _SHORTER | {"workers": count, "warmup_steps": warmup_steps}


def fit_workers(settings: dict[str, Any], site: str) -> dict[str, Any]:
    """Return settings with at most as many workers as the site's jobs have cores, less one.

    Fewer workers load fewer batches ahead, so warm-up and measured part are shorter, too.
    """
    if site.startswith("recorded-"):
        return settings
    count = max(1, min(settings["workers"], _job_cores(site) - 1))
    sizes = {name: settings[name] * count for name in ("steps", "warmup_steps")}
    shorter = {name: math.ceil(size / settings["workers"]) for name, size in sizes.items()}
    return settings | shorter | {"workers": count}


def _job_cores(site: str) -> int:
    place = sites.get(site)
    return place.cpus_per_gpu if place.executor == "slurm" else core_count()


def _trial_configs() -> Iterator[Config]:
    """Yield the trials at full size."""
    yield rung("channels_last", **LOADER_SETTINGS)
    yield rung("dataloader", **LOADER_SETTINGS)
    changes = {
        "four-workers": {"workers": 4},
        "persistent": {"persistent_workers": True},
        "pinned": configs.PINNED_WORKERS,
        "everything": configs.PINNED_WORKERS | {"prefetch_factor": 4},
    }
    changes["sixteen"] = changes["everything"] | {"workers": 16}
    changes["floats"] = changes["sixteen"] | {"uint8": False}
    for name, change in changes.items():
        yield rung("dataloader", **LOADER_SETTINGS, **change, rung=name)


def _bottleneck() -> FunctionCheck:
    from labs.dataloader import verify

    return FunctionCheck(verify.find_bottleneck, verify.check_answers, verify.check_scale)


WORKERS = (
    Fact("worker_init_fn of the training DataLoader", lambda rank: rank.notes.worker_init_fn,
         "leave it out: PyTorch seeds each worker differently, and `loaders(…)` has its own"),
)  # fmt: skip
EXERCISES = {
    "dataloader": Exercise(
        title="workers load the batches",
        configs=(
            {"rung": "channels_last"},
            {"workers": 1, "persistent_workers": False},
            {"workers": 2},
        ),
        calls=("course.checks.dry_runs:loading",),
        causes=WORKERS,
        rung="dataloader",
        against="channels_last",
        shows={"the DataLoader": "loader"},
        on_cpu="here the network computes on the same cores that the workers need",
        changes={"pin_memory": True, "persistent_workers": True, "prefetch_factor": 3},
    ),
}

LAB = Lab(
    title="the DataLoader and its workers",
    minutes=95,
    exercises=EXERCISES,
    facts=mechanism.FACTS,
    functions={"loading.bottleneck": Function("what limits training from files", _bottleneck)},
    recordings=(
        Recording(  # the fastest networks
            "throughput",
            [
                rung("fused", **FULL_SIZE),
                rung("compile", **FULL_SIZE),
                rung("compile", precision="fp16", **FULL_SIZE),
            ],
        ),
        Recording("loading", [*_trial_configs()]),
    ),
    jobs="2, of 4 runs",
    prepare="`cpus_per_gpu`: a task with one core has none left for workers",
    stuck="`non_blocking` goes into TODO device's lines; the test compares with the network first",
)
