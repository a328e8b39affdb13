"""The lab's checks and recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course import Config, Run, rung
from course.lab import Exercise, Lab, Recording, configs, expect
from labs.data_parallel import mechanism


def _describe_rank(run: Run) -> str:
    devices = [run.evidence(rank).device for rank in range(run.gpus)]
    places = [(rank["host"], device) for rank, device in zip(run.ranks, devices)]
    shared = {device for host, device in places if places.count((host, device)) > 1} - {"cpu"}
    expect(
        not shared, f"several ranks computed on {', '.join(shared)}: take run.local_rank's device"
    )
    return f"{len(run.ranks)} ranks in one process group, on {', '.join(devices)}"


# One run serves all three checks. Two epochs show whether shuffling differs; the batch gives each
# rank enough images for BatchNorm; the small learning rate keeps differences from growing. The
# number of validation images is odd and exceeds one rank's val_steps batches, so repeated or
# forgotten images change the count. Buckets that differ from DDP's default show whether the script
# passes its options on.
DDP_SETTINGS: dict[str, Any] = {
    "model": "resnet18",
    "image_px": 64,
    "epochs": 2,
    "steps": 3,
    "budget_s": 0.0,
    "batch_size": 16,
    "lr": 0.001,
    "val_images": 61,
    "save_weights": True,
    "bucket_mb": 10.0,
}

# Changes to DDP_SETTINGS at full size.
DDP_FULL_SIZE = {
    "model": "resnet50",
    "image_px": 224,
    "steps": 16,
    "batch_size": 128,
    "val_images": 253,
}


def _pair(gpus: int) -> Iterator[tuple[Config, int]]:
    """Yield the run at full size, on one GPU and on two."""
    yield from (
        (rung("device", **DDP_SETTINGS | DDP_FULL_SIZE), count) for count in (1, configs.RANKS)
    )


EXERCISES = {
    "process_group": Exercise(
        title="one process per device, all in one group",
        configs=({"ranks": 1}, {"ranks": 2, "collective_timeout_s": 17}),
        calls=("course.checks.dry_runs:joining",),
        rung="device",
        against="device",
        describe=_describe_rank,
        settings=DDP_SETTINGS,
        gpus=configs.RANKS,
        timed=False,
    ),
    "data_parallel": Exercise(
        title="each rank takes its share, and gradients are averaged",
        configs=(
            {"ranks": 1, "data": "synthetic"},
            {"ranks": 1, "seed": 1},
            {"ranks": 2, "bucket_mb": 0.3, "find_unused": True},
            {"ranks": 3, "batch_size": 9, "bucket_mb": 0.7, "val_steps": 0},
        ),
        calls=("course.checks.dry_runs:splitting", "course.checks.dry_runs:agreeing"),
        rung="device",
        against="device",
        shows={"images of each rank": "share", "collectives in the first step": "collectives"},
        settings=DDP_SETTINGS,
        gpus=configs.RANKS,
        on_cpu="here both ranks share the cores that one rank already used",
    ),
    "distributed_validation": Exercise(
        title="each image is validated once, and one rank saves the weights",
        configs=({"ranks": 1, "ema": 0.9}, {"ranks": 2}, {"ranks": 3, "batch_size": 9}),
        rung="device",
        against="device",
        shows={"images that the last rank validated, by epoch": "val_taken"},
        settings=DDP_SETTINGS,
        gpus=configs.RANKS,
        timed=False,
    ),
}

LAB = Lab(
    title="data parallelism on several GPUs",
    minutes=100,
    exercises=EXERCISES,
    facts=mechanism.FACTS,
    recordings=(Recording("scaling", several=_pair),),
    jobs="3 to 7, most of 2 processes",
    prepare="two GPUs for each learner, or the CPU",
    stuck="the batch size is that of all ranks; the hangs in section 5 are intended",
)
