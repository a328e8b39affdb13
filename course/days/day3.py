"""How it is seen that a TODO of Day 3 works: shards are read whole, labels say what was mixed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.config import CHOICES, Config, rung
from course.days import learning, updates
from course.days.compiling import COMPILER_CHECKS, modes
from course.days.day1 import ON_CPU
from course.days.day2 import FED
from course.days.lab import FULL_SIZE, Lab, Mechanism, Place, Recording, chosen
from course.days.rehearsed import mixing
from course.days.rehearsed import steps as rehearsals
from course.runs.run import Run

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


def _anywhere(cfg: Config, place: Place) -> str:
    return ""


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


FORMAT_CHECKS = {
    "day3.shards": Mechanism(
        title="images come out of tar files",
        todo=10,
        rung="shards",
        against="dataloader",
        seen=_read_seen,
        limits=_anywhere,
        word="images_of",
        needed=lambda run: run.config.format == "shards",
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
        limits=_anywhere,
        word="own_shards",
        needed=lambda run: run.config.format == "shards" and run.config.workers > 1,
        rehearsed=rehearsals.sharing,
        settings=READ,
        tolerance=OTHER_IMAGES,
        timed=False,
    ),
}


UPDATED = READ | {"workers": 0}
OTHER_RATES = 0.3  # of a step's loss: of small steps, with another learning rate


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
    fed = FORMAT_SETTINGS | FED | {"workers": 15}  # of 16 cores: one is left to what feeds the GPU
    for name in CHOICES["format"]:
        yield rung("compile", **fed, format=name, rung=name)
    for name, workers in (("files", 16), ("raw", 4), ("gpu_decode", 4), ("small", 8)):
        own = {"workers": workers, "format": name, "rung": f"{name}-{workers}"}
        yield rung("compile", **fed | own)
    for name in ("files", "shards", "small", "raw"):
        yield rung("channels_last", **FORMAT_SETTINGS | CORE, format=name, rung=f"{name}-alone")


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
MIX_CHECKS = {
    "day3.mixup": Mechanism(
        title="each image is blended with another, and so are their labels",
        todo=12,
        rung="mixup",
        against="dataloader",
        seen=_mixing_seen,
        limits=_anywhere,
        word="def mixup",
        needed=lambda run: run.config.mix == "mixup",
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
        limits=_anywhere,
        word="def cutmix",
        needed=lambda run: run.config.mix == "cutmix",
        faults=_mixing_faults,
        rehearsed=mixing.mixing,
        settings=MIXED,
        tolerance=MIXED_LOSS,
        timed=False,
    ),
}

# 32 batches may lie ready when measuring begins, which would feed the GPU for so many steps: twice
# as many are left out, and six times as many measured.
AUGMENTATION_CONFIG = {
    "batch_size": 256,
    "epochs": 1,
    "steps": 256,
    "warmup_steps": 64,
    "val_steps": 0,
    "workers": 16,
    **FED,
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
    **FED,
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


def _grouped_seen(run: Run) -> str:
    found = updates.decays(run.record.evidence, run.config) or {}
    return "weight decay: " + ", ".join(f"{kind} {decay}" for kind, decay in found.items())


def _search_faults(run: Run, against: Run) -> Iterator[str]:
    if run.config.schedule == "find" and (told := updates.rates(run)):
        yield f"{told}: cfg.lr / 10,000 at the first, cfg.lr at the last, and between them"


def _search_seen(run: Run) -> str:
    found = run.steps["lr"].dropna()
    return f"{len(found)} updates, from {found.iloc[0]:.3g} to {found.iloc[-1]:.3g}, as is due"


LEARNING_CHECKS = {
    "day3.groups": Mechanism(
        title="weight decay spares BatchNorm and biases",
        todo=14,
        rung="no_norm_decay",
        against="channels_last",
        seen=_grouped_seen,
        limits=_anywhere,
        word="optimizers.create",
        needed=lambda run: not run.config.norm_decay,
        settings=UPDATED,
        timed=False,
    ),
    "day3.find": Mechanism(
        title="the learning rate is searched",
        todo=15,
        rung="find",
        against="channels_last",
        seen=_search_seen,
        limits=_anywhere,
        word="optimizers.schedule",
        needed=lambda run: run.config.schedule == "find",
        faults=_search_faults,
        settings=UPDATED,
        tolerance=OTHER_RATES,
        timed=False,
    ),
}


LABS = (
    Lab(
        number="3.1",
        notebook="day3_1_formats",
        title="where the images lie, and who decodes them",
        minutes=75,
        quiz="day3_1",
        checks=chosen(FORMAT_CHECKS, "day3.shards", "day3.shares"),
        recordings=(Recording("formats", [*_formats()]),),
        jobs="5, of 9 runs",
        prepare="`course data --as`, once, for a set of your own",
        stuck="the class follows its image in the tar file; a rank knows nothing of its workers' "
        "numbers",
    ),
    Lab(
        number="3.2",
        notebook="day3_2_augmentation",
        title="augmentation, on which side?",
        minutes=60,
        quiz="day3_2",
        checks=chosen(MIX_CHECKS, "day3.mixup", "day3.cutmix"),
        recordings=(Recording("augmentation", [*_speeds(), *_brings()]),),
        jobs="4, of 9 runs",
        prepare="as 2.1; nothing else",
        stuck="λ of an image, not of the batch; a box that the border cuts off",
    ),
    Lab(
        number="3.3",
        notebook="day3_3_large_batch",
        title="many images an update, and still learning",
        minutes=75,
        quiz="day3_3",
        checks=chosen(LEARNING_CHECKS, "day3.groups", "day3.find"),
        recordings=(
            Recording("optimizers", [*map(learning.stepped, ("sgd", *learning.OWN))]),
            Recording("learning", [*learning.trainings()]),
        ),
        jobs="8, of 8 runs",
        prepare="the crops, 240 MB, are made by the first run",
        stuck="which update has `cfg.lr`: the last, not the one after it",
    ),
    Lab(
        number="3.4",
        notebook="day3_4_compile",
        title="let the compiler write the kernels",
        minutes=75,
        quiz="day3_4",
        checks=chosen(COMPILER_CHECKS, "day3.compile"),
        rungs=(("fused", "bf16"), ("compile", "bf16")),
        recordings=(
            Recording("throughput", [rung(name, **ON_CPU) for name in ("fused", "compile")]),
            Recording("compiler", [*modes()]),
        ),
        jobs="3, of 4 runs",
        prepare="a C++ compiler on the nodes (`module load gcc`); "
        "`TORCHINDUCTOR_CACHE_DIR` on a disk that all of them see, one folder per user",
        stuck="what `torch.compile` gives back must be kept; DDP goes around it",
    ),
)
