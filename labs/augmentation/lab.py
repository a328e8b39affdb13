"""The lab's checks and recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course import Config, rung
from course.lab import Exercise, Lab, Recording, configs
from labs.dataloader.lab import fit_workers
from labs.large_batch import configs as learning

# For both runs of a check: enough images that some pairs have two classes.
MIXED = {"batch_size": 16}

# Up to 32 batches are ready when measuring begins, enough for 32 steps: warm-up is twice as long,
# and the measured part six times.
AUGMENTATION_CONFIG = {
    "batch_size": 256,
    "epochs": 1,
    "steps": 256,
    "warmup_steps": 64,
    "val_steps": 0,
    "workers": 16,
    **configs.PINNED_WORKERS,
}

# Of a CPU. Batches made ahead would feed the first steps: those are warm-up.
SMALL: dict[str, Any] = {
    "model": "resnet18",
    "image_px": 64,
    "batch_size": 16,
    "steps": 24,
    "warmup_steps": 8,
    "val_steps": 0,
    "budget_s": 0,
}


def run_settings(quick: bool, site: str, stored: str = "files") -> dict[str, Any]:
    """Return the settings of the notebook's runs, with images stored in a format if not quick."""
    # The recorded runs are longer than needed to see what a change costs.
    shorter = {} if site.startswith("recorded") else {"steps": 160}
    return SMALL if quick else fit_workers(AUGMENTATION_CONFIG | shorter, site) | {"format": stored}


# Crops of 128, 160, 192 and 224 pixels, or of 224 in all epochs.
PROGRESSIVE_RESIZE = AUGMENTATION_CONFIG | {
    "format": "raw",
    "epochs": 4,
    "steps": 64,
    "warmup_steps": 8,
}

# ResNet-50 from scratch; each epoch uses all of the default set twice.
TRAINING = {
    "format": "raw",
    "image_px": 128,
    "batch_size": 128,
    "epochs": 20,
    "steps": 16,
    "warmup_steps": 16,
    "val_steps": 2,
    "workers": 12,
    "lr": 0.05,
    **configs.PINNED_WORKERS,
}


def _speed_configs() -> Iterator[Config]:
    """Yield each augmentation's rung: on files, where workers are busy, and on raw bytes."""
    on_files = ("dataloader", "randaugment", "randaugment_device")
    on_raw = (*on_files, "mixup", "cutmix", "label_smoothing")
    for names, stored in ((on_files, "files"), (on_raw, "raw")):
        for name in names:
            yield rung(name, **AUGMENTATION_CONFIG, format=stored, rung=f"{name}-{stored}")
    for name in ("dataloader", "progressive"):
        yield rung(name, **PROGRESSIVE_RESIZE, rung=f"{name}-epochs")


def _training_configs() -> Iterator[Config]:
    """Yield training runs with each augmentation, for its accuracy (docs/behind-the-labs.md)."""
    for seed in learning.SEEDS:
        for name in ("none", "mixup", "cutmix", "progressive"):
            settings = TRAINING | ({"start_px": 64} if name == "progressive" else {})
            base = "dataloader" if name == "none" else name
            yield rung(base, **settings, seed=seed, rung=f"{name}-seed-{seed}")


EXERCISES = {
    "mixup": Exercise(
        title="each image is blended with another one, and so is its label",
        configs=({"rung": "dataloader"},),
        calls=("labs.augmentation.mixing_checks:mixing",),
        rung="mixup",
        against="dataloader",
        shows={"share of the labels with two classes": "mixed"},
        settings=MIXED,
        timed=False,
    ),
    "cutmix": Exercise(
        title="each image has a box of another one, and its label counts the area",
        configs=({"rung": "dataloader"},),
        calls=("labs.augmentation.mixing_checks:mixing",),
        rung="cutmix",
        against="dataloader",
        shows={"share of the labels with two classes": "mixed"},
        settings=MIXED,
        timed=False,
    ),
}

LAB = Lab(
    title="augmentation on the CPU or the GPU",
    minutes=85,
    exercises=EXERCISES,
    recordings=(Recording("augmentation", [*_speed_configs(), *_training_configs()]),),
    jobs="3, of 6 runs",
    prepare="as 2.1; nothing else",
    stuck="λ per image, not per batch; a box that the border cuts off",
)
