"""Lab 3.2: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from collections.abc import Iterator

from course.checks.lab import Lab, Mechanism, Recording
from course.config import Config, rung
from course.runs.run import Run
from labs.day2_3_scaling.configs import PINNED_WORKERS
from labs.day3_2_augmentation import mixing_checks as mixing
from labs.day3_3_large_batch import configs as learning

# Mixed labels leave a loss that no network goes below: at full size, whole images have little more
# than half of it after 16 steps.
MIXED_LOSS = 1.0


def _mixing_faults(run: Run, against: Run) -> Iterator[str]:
    yield from mixing.mixing(run.script.read_text(), run.config)


def _mixing_seen(run: Run) -> str:
    return (
        f"{run.record.evidence['mixed']:.0%} of the first batch's labels have two classes; "
        f"{mixing.CALLS} batches of {mixing.IMAGES} were mixed by your {run.config.mix} aside: "
        f"labels say what is in the pixels, shares follow Beta(α, α), pairs are permuted, and "
        f"no image has a call of its own"
    )


# Of both runs: enough images that some pair has two classes.
MIXED = {"batch_size": 16}

# 32 batches may lie ready when measuring begins, which would feed the GPU for so many steps: twice
# as many are left out, and six times as many measured.
AUGMENTATION_CONFIG = {
    "batch_size": 256,
    "epochs": 1,
    "steps": 256,
    "warmup_steps": 64,
    "val_steps": 0,
    "workers": 16,
    **PINNED_WORKERS,
}

ON_HOST = ("dataloader", "randaugment", "randaugment_device")

ON_DEVICE = ("mixup", "cutmix", "label_smoothing")

# Crops of 128, 160, 192 and 224 pixels, or of 224 in all epochs.
PROGRESSIVE_RESIZE = AUGMENTATION_CONFIG | {
    "format": "raw",
    "epochs": 4,
    "steps": 64,
    "warmup_steps": 8,
}


def sped(name: str, stored: str) -> Config:
    """A run that shows how fast a way of augmenting is, by its rung; images stored so."""
    return rung(name, **AUGMENTATION_CONFIG, format=stored, rung=f"{name}-{stored}")


def grown(name: str) -> Config:
    """A run over four epochs, with crops that grow ("progressive") or not ("dataloader")."""
    return rung(name, **PROGRESSIVE_RESIZE, rung=f"{name}-epochs")


def _speeds() -> Iterator[Config]:
    """Files show what workers have to do; raw bytes, which always come in time, all else."""
    yield from (sped(name, "files") for name in ON_HOST)
    yield from (sped(name, "raw") for name in (*ON_HOST, *ON_DEVICE))
    yield from (grown(name) for name in ("dataloader", "progressive"))


# What it brings: ResNet-50 from its beginning, all of the default set twice in every epoch.
LEARNED = {
    "format": "raw",
    "image_px": 128,
    "batch_size": 128,
    "epochs": 20,
    "steps": 16,
    "warmup_steps": 16,
    "val_steps": 2,
    "workers": 12,
    "lr": 0.05,
    **PINNED_WORKERS,
}

BRINGS = {
    "none": "dataloader",
    "mixup": "mixup",
    "cutmix": "cutmix",
    "progressive": "progressive",
}


def learned(name: str, seed: int) -> Config:
    """A training that shows what a way of augmenting brings, by its name in `BRINGS`."""
    own = {"start_px": 64} if name == "progressive" else {}
    return rung(BRINGS[name], **LEARNED | own, seed=seed, rung=f"{name}-seed-{seed}")


def _brings() -> Iterator[Config]:
    for seed in learning.SEEDS:
        yield from (learned(name, seed) for name in BRINGS)


CHECKS = {
    "day3.mixup": Mechanism(
        title="each image is blended with another, and so are their labels",
        todo=12,
        rung="mixup",
        against="dataloader",
        seen=_mixing_seen,
        word="def mixup",
        faults=_mixing_faults,
        rehearsed=mixing.mixing,
        settings=MIXED,
        tolerance=MIXED_LOSS,
        timed=False,
    ),
    "day3.cutmix": Mechanism(
        title="each image has a box of another, and its label counts the box",
        todo=13,
        rung="cutmix",
        against="dataloader",
        seen=_mixing_seen,
        word="def cutmix",
        faults=_mixing_faults,
        rehearsed=mixing.mixing,
        settings=MIXED,
        tolerance=MIXED_LOSS,
        timed=False,
    ),
}

LAB = Lab(
    number="3.2",
    title="augmentation, on which side?",
    minutes=60,
    checks=CHECKS,
    recordings=(Recording("augmentation", [*_speeds(), *_brings()]),),
    jobs="4, of 9 runs",
    prepare="as 2.1; nothing else",
    stuck="λ of an image, not of the batch; a box that the border cuts off",
)
