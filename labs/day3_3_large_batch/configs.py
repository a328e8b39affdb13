"""What lab 3.3 trains: crops by few and by many images an update, by one optimizer and another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.checks.lab import FULL_SIZE
from course.config import Config, rung

SEEDS = (0, 1, 2)
# All of the crops six times, whatever the batch; the rate grows for a tenth of the updates, and
# falls to nothing.
EPOCHS, CROPS_IN_ALL = 6, 65_536
BATCHES = (256, 512, 1024, 2048, 4096, 8192)
RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
FEW_MANY = (BATCHES[0], BATCHES[-1])


# On a processor: so few of them, once, by a smaller network.
QUICK_CROPS = 4096
QUICK: dict[str, Any] = {
    "model": "resnet18",
    "epochs": 1,
    "warmup_steps": 1,
    "val_steps": 128,
    "val_images": 1024,
    "precision": "fp32",
}


def crops_config(
    batch_size: int, lr: float, name: str = "sgd", *, quick: bool = False, **own: Any
) -> Config:
    """A training on the crops to its end.

    Args:
        name: what is shown, in the run's label.
        quick: small enough for two cores of a processor.
        own: fields of a Config that are otherwise.
    """
    epochs = QUICK["epochs"] if quick else EPOCHS
    steps = (QUICK_CROPS if quick else CROPS_IN_ALL) // batch_size
    values: dict[str, Any] = {
        "data": "crops",
        "model": "resnet18_cifar",
        "image_px": 32,
        "batch_size": batch_size,
        "epochs": epochs,
        "steps": steps,
        "warmup_steps": 4,
        "val_steps": 32,
        "lr": lr,
        "schedule": "linear",
        "lr_warmup": max(1, epochs * steps // 10),
        "weight_decay": 5e-4,
    }
    values |= (QUICK if quick else {}) | own
    seed = f"-seed-{own['seed']}" if own.get("seed") else ""
    return rung("channels_last", **values, rung=f"{name}-{batch_size}-{lr:g}{seed}")


def _grid() -> Iterator[Config]:
    """Stochastic gradient descent at each batch and each learning rate."""
    yield from (crops_config(batch, lr) for batch in reversed(BATCHES) for lr in RATES)


# AdamW and what resembles it pull at weights beside the gradient, by this and the learning rate.
DECOUPLED = {"weight_decay": 0.05}
OWN: dict[str, dict[str, Any]] = {
    "nesterov": {},
    "adamw": DECOUPLED,
    "lars": {},
    "lamb": DECOUPLED,
    "lion": DECOUPLED,
    "muon": DECOUPLED,
    "schedulefree": {"schedule": ""},
}
# Learning rates that were tried with each optimizer, at the smallest batch and at the largest:
# the first one of each with three seeds, the others with one.
TRIED: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "nesterov": ((0.3,), (0.3, 1)),
    "adamw": ((1e-3, 3e-3), (1e-2, 3e-3, 3e-2)),
    "lars": ((10, 1, 3), (10, 3, 30)),
    "lamb": ((1e-2, 3e-3), (3e-2, 1e-2, 1e-1)),
    "lion": ((3e-4, 1e-4), (1e-3, 3e-4, 3e-3)),
    "muon": ((3e-2, 1e-2), (3e-2, 1e-2, 1e-1)),
    "schedulefree": ((1, 0.3), (1, 0.3, 3)),
}
AT_MANY = 0.3  # the learning rate at which schedules are compared, with many images
SCHEDULES: dict[str, dict[str, Any]] = {
    "warm-up": {"schedule": ""},
    "falls": {"lr_warmup": 0},
    "cosine": {"schedule": "cosine"},
    "one-cycle": {"schedule": "one_cycle", "lr_warmup": 0},
}  # and warm-up, then a linear fall: that of the grid


def by_optimizer(name: str, batch_size: int, lr: float, **own: Any) -> Config:
    """A training with another optimizer."""
    return crops_config(batch_size, lr, name, optimizer=name, **OWN[name], **own)


def rate_search_config(batch_size: int, *, quick: bool = False) -> Config:
    """A search for a learning rate."""
    own = {} if quick or batch_size == FEW_MANY[1] else {"epochs": 1}
    return crops_config(batch_size, 10.0, "find", quick=quick, schedule="find", lr_warmup=0, **own)


# Beside SGD at its best with few images.
BESIDE: dict[str, dict[str, Any]] = {
    "no-decay": {"weight_decay": 0.0},
    "decay-spares-vectors": {"norm_decay": False},
    "averages": {"ema": 0.99},
    "smoothing": {"label_smoothing": 0.1},
}


def stepped(name: str) -> Config:
    """A run that shows how long a step takes with an optimizer, and what that keeps."""
    small = {"steps": 40, "warmup_steps": 10, "lr": 1e-4}
    return rung("channels_last", **FULL_SIZE | small, optimizer=name, rung=f"step-{name}")


def trainings() -> Iterator[Config]:
    """All of them, what matters most first."""
    few, many = FEW_MANY
    yield from _grid()
    yield from map(rate_search_config, FEW_MANY)
    yield from (crops_config(many, AT_MANY, name, **own) for name, own in SCHEDULES.items())
    for name, tried in TRIED.items():
        for batch, rates in zip(FEW_MANY, tried):
            yield from (by_optimizer(name, batch, lr) for lr in rates)
            yield from (by_optimizer(name, batch, rates[0], seed=seed) for seed in SEEDS[1:])
    for batch in FEW_MANY:  # 0.3 is the grid's best at either
        yield from (crops_config(batch, 0.3, seed=seed) for seed in SEEDS[1:])
    yield from (crops_config(few, 0.3, name, **own) for name, own in BESIDE.items())
