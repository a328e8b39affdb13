"""How it is seen that a TODO of Day 3 works: what is drawn is looked at, many times over."""

from __future__ import annotations

from collections.abc import Iterator

from course.config import Config, rung
from course.days import mixing
from course.days.day2 import FED
from course.days.lab import Lab, Mechanism, Place, Recording, chosen
from course.runs.run import Run

# Mixed labels say less: what their loss is at first differs by chance.
MIXED_LOSS = 0.35


def _mixing_faults(run: Run, against: Run) -> Iterator[str]:
    yield from mixing.mixing(run.script.read_text(), run.config)


def _mixing_seen(run: Run) -> str:
    return (
        f"{run.record.evidence['mixed']:.0%} of the first batch's labels have two classes; "
        f"{mixing.CALLS} batches of {mixing.IMAGES} were mixed by your {run.config.mix} aside: "
        f"labels say what is in the pixels, shares follow Beta(α, α), pairs are permuted, and "
        f"no image has a call of its own"
    )


def _anywhere(cfg: Config, place: Place) -> str:
    return ""


# Of both runs: enough images that some pair has two classes.
MIXED = {"batch_size": 16}
DAY3 = {
    "day3.mixup": Mechanism(
        "each image is blended with another, and so are their labels", 12, "mixup", "dataloader",
        _mixing_seen, _anywhere, "def mixup", lambda run: run.config.mix == "mixup",
        faults=_mixing_faults, rehearsed=mixing.mixing, settings=MIXED,
        tolerance=MIXED_LOSS, timed=False,
    ),
    "day3.cutmix": Mechanism(
        "each image has a box of another, and its label counts the box", 13, "cutmix",
        "dataloader", _mixing_seen, _anywhere, "def cutmix", lambda run: run.config.mix == "cutmix",
        faults=_mixing_faults, rehearsed=mixing.mixing, settings=MIXED,
        tolerance=MIXED_LOSS, timed=False,
    ),
}  # fmt: skip

# 32 batches may lie ready when measuring begins, which would feed the GPU for so many steps: twice
# as many are left out, and six times as many measured.
SPED = {
    "batch_size": 256, "epochs": 1, "steps": 256, "warmup_steps": 64, "val_steps": 0,
    "workers": 16, **FED,
}  # fmt: skip
ON_HOST = ("dataloader", "randaugment", "randaugment_device")
ON_DEVICE = ("mixup", "cutmix", "label_smoothing")
# Crops of 128, 160, 192 and 224 pixels, or of 224 in all epochs.
GROWING = SPED | {"format": "raw", "epochs": 4, "steps": 64, "warmup_steps": 8}


def sped(name: str, stored: str) -> Config:
    """A run that shows how fast a way of augmenting is, by its rung; images stored so."""
    return rung(name, **SPED, format=stored, rung=f"{name}-{stored}")


def grown(name: str) -> Config:
    """A run over four epochs, with crops that grow ("progressive") or not ("dataloader")."""
    return rung(name, **GROWING, rung=f"{name}-epochs")


def _speeds() -> Iterator[Config]:
    """Files show what workers have to do; raw bytes, which always come in time, all else."""
    yield from (sped(name, "files") for name in ON_HOST)
    yield from (sped(name, "raw") for name in (*ON_HOST, *ON_DEVICE))
    yield from (grown(name) for name in ("dataloader", "progressive"))


# What it brings: ResNet-50 from its beginning, all of the default set twice in every epoch.
LEARNED = {
    "format": "raw", "image_px": 128, "batch_size": 128, "epochs": 20, "steps": 16,
    "warmup_steps": 16, "val_steps": 2, "workers": 12, "lr": 0.05, **FED,
}  # fmt: skip
BRINGS = {
    "none": "dataloader", "mixup": "mixup", "cutmix": "cutmix", "progressive": "progressive",
}  # fmt: skip
SEEDS = (0, 1, 2)


def learned(name: str, seed: int) -> Config:
    """A training that shows what a way of augmenting brings, by its name in `BRINGS`."""
    own = {"start_px": 64} if name == "progressive" else {}
    return rung(BRINGS[name], **LEARNED | own, seed=seed, rung=f"{name}-seed-{seed}")


def _brings() -> Iterator[Config]:
    for seed in SEEDS:
        yield from (learned(name, seed) for name in BRINGS)


LABS = (
    Lab(
        "3.2", "day3_2_augmentation", "augmentation, on which side?", 60, "day3_2",
        chosen(DAY3, "day3.mixup", "day3.cutmix"),
        recordings=(Recording("augmentation", [*_speeds(), *_brings()]),),
        jobs="5, of 8 runs", prepare="as 2.1; nothing else",
        stuck="λ of an image, not of the batch; a box that the border cuts off",
    ),
)  # fmt: skip
