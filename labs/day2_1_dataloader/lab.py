"""Lab 2.1: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from collections.abc import Iterator

from course.checks import dry_runs as rehearsals
from course.checks.lab import FULL_SIZE, Lab, Mechanism, Place, Recording
from course.config import Config, rung
from course.runs.run import Run
from labs.day2_3_scaling.configs import FED


def _loader_seen(run: Run) -> str:
    seen = run.record.evidence.get("loader", {}).items()
    return (
        f"{', '.join(f'{name}={value}' for name, value in seen)}; pinned memory and copies "
        f"rehearsed with a pretended accelerator"
    )


def _loader_limits(cfg: Config, place: Place) -> str:
    if place.device != "cpu":
        return ""
    return "here the network computes on the very cores that the workers need"


# The first epoch is warm-up, and so is the beginning of the second, where workers begin anew: in
# an epoch of a million images it does not count.
LOADER_SETTINGS = {
    "batch_size": 256,
    "epochs": 2,
    "steps": 56,
    "warmup_steps": 64,
    "val_steps": 0,
}


def _loading() -> Iterator[Config]:
    """The trials of lab 2.1 at full size."""
    yield rung("channels_last", **LOADER_SETTINGS)
    yield rung("dataloader", **LOADER_SETTINGS)
    changes = {
        "four-workers": {"workers": 4},
        "persistent": {"persistent_workers": True},
        "pinned": FED,
        "everything": FED | {"prefetch_factor": 4},
    }
    changes["sixteen"] = changes["everything"] | {"workers": 16}
    changes["floats"] = changes["sixteen"] | {"uint8": False}
    yield from (
        rung("dataloader", **LOADER_SETTINGS, **change, rung=name)
        for name, change in changes.items()
    )


CHECKS = {
    "day2.dataloader": Mechanism(
        title="other processes load the batches",
        todo=6,
        rung="dataloader",
        against="channels_last",
        seen=_loader_seen,
        limits=_loader_limits,
        word="loading",
        tolerance=0.15,
        changes={"pin_memory": True, "persistent_workers": True, "prefetch_factor": 3},
        rehearsed=rehearsals.loading,
    ),
}

LAB = Lab(
    number="2.1",
    title="feed it",
    minutes=60,
    checks=CHECKS,
    recordings=(
        Recording(  # the largest appetites
            "throughput",
            [
                rung("fused", **FULL_SIZE),
                *(rung("compile", precision=each, **FULL_SIZE) for each in ("bf16", "fp16")),
            ],
        ),
        Recording("loading", [*_loading()]),
    ),
    jobs="3, of 8 runs",
    prepare="`cpus_per_gpu`: with one core for a task there is nothing to load with",
    stuck="a median hides the step that waits; `non_blocking` belongs into TODO 1's lines",
)
