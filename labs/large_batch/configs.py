"""Trainings of this lab: crops at several batch sizes, learning rates, schedules and optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course import Config, rung
from course.lab import FULL_SIZE

SEEDS = (0, 1, 2)
# Every training uses all crops six times, regardless of its batch size.
EPOCHS, CROPS = 6, 65_536
BATCHES = (256, 512, 1024, 2048, 4096, 8192)
SMALL_BATCH, LARGE_BATCH = BATCHES[0], BATCHES[-1]
RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
BEST_RATE = 0.3  # of the grid, at the smallest batch and at the largest

# On a CPU: fewer crops, once, with a smaller network.
QUICK_CROPS = 4096
QUICK: dict[str, Any] = {
    "model": "resnet18",
    "epochs": 1,
    "warmup_steps": 1,
    "val_steps": 128,
    "val_images": 1024,
    "precision": "fp32",
}

DECOUPLED = {"weight_decay": 0.05}  # AdamW and its relatives multiply it by the learning rate
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "nesterov": {},
    "adamw": DECOUPLED,
    "lars": {},
    "lamb": DECOUPLED,
    "lion": DECOUPLED,
    "muon": DECOUPLED,
    "schedulefree": {"schedule": ""},
}
# Learning rates for the smallest batch and for the largest. The first of each is trained with
# three seeds, the rest with one.
OPTIMIZER_RATES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "nesterov": ((0.3,), (0.3, 1)),
    "adamw": ((1e-3, 3e-3), (1e-2, 3e-3, 3e-2)),
    "lars": ((10, 1, 3), (10, 3, 30)),
    "lamb": ((1e-2, 3e-3), (3e-2, 1e-2, 1e-1)),
    "lion": ((3e-4, 1e-4), (1e-3, 3e-4, 3e-3)),
    "muon": ((3e-2, 1e-2), (3e-2, 1e-2, 1e-1)),
    "schedulefree": ((1, 0.3), (1, 0.3, 3)),
}
# Schedules for the largest batch; the grid has warm-up, then a linear fall.
SCHEDULES: dict[str, dict[str, Any]] = {
    "warm-up": {"schedule": ""},
    "falls": {"lr_warmup": 0},
    "cosine": {"schedule": "cosine"},
    "one-cycle": {"schedule": "one_cycle", "lr_warmup": 0},
}
# Compared with SGD at its best rate for the smallest batch.
REGULARISERS: dict[str, dict[str, Any]] = {
    "no-decay": {"weight_decay": 0.0},
    "decay-spares-vectors": {"norm_decay": False},
    "averages": {"ema": 0.99},
    "smoothing": {"label_smoothing": 0.1},
}


def crops_config(
    batch_size: int, lr: float, name: str = "sgd", *, quick: bool = False, **settings: Any
) -> Config:
    """Return the config of a complete training on the crops.

    Args:
        name: the beginning of the run's label.
        quick: small enough for two CPU cores.
        settings: further fields of the Config.
    """
    epochs = QUICK["epochs"] if quick else EPOCHS
    steps = (QUICK_CROPS if quick else CROPS) // batch_size
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
    values |= (QUICK if quick else {}) | settings
    seed = f"-seed-{settings['seed']}" if settings.get("seed") else ""
    return rung("channels_last", **values, rung=f"{name}-{batch_size}-{lr:g}{seed}")


def rate_search_config(batch_size: int, *, quick: bool = False) -> Config:
    """Return the config of a learning rate search."""
    settings = {} if quick or batch_size == LARGE_BATCH else {"epochs": 1}
    return crops_config(
        batch_size, 10.0, "find", quick=quick, schedule="find", lr_warmup=0, **settings
    )


def step_config(optimizer: str) -> Config:
    """Return the config of a run that measures an optimizer's step time and memory."""
    short = {"steps": 40, "warmup_steps": 10, "lr": 1e-4}
    return rung("channels_last", **FULL_SIZE | short, optimizer=optimizer, rung=f"step-{optimizer}")


def learning_configs() -> Iterator[Config]:
    """Yield all training runs, the most important first."""
    yield from (crops_config(batch, lr) for batch in reversed(BATCHES) for lr in RATES)
    yield from map(rate_search_config, (SMALL_BATCH, LARGE_BATCH))
    for name, settings in SCHEDULES.items():
        yield crops_config(LARGE_BATCH, BEST_RATE, name, **settings)
    for name, rates_by_batch in OPTIMIZER_RATES.items():
        settings = {"optimizer": name, **OPTIMIZERS[name]}
        for batch, rates in zip((SMALL_BATCH, LARGE_BATCH), rates_by_batch):
            yield from (crops_config(batch, lr, name, **settings) for lr in rates)
            for seed in SEEDS[1:]:
                yield crops_config(batch, rates[0], name, **settings, seed=seed)
    for batch in (SMALL_BATCH, LARGE_BATCH):
        yield from (crops_config(batch, BEST_RATE, seed=seed) for seed in SEEDS[1:])
    for name, settings in REGULARISERS.items():
        yield crops_config(SMALL_BATCH, BEST_RATE, name, **settings)
