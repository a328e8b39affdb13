"""Lab 4.4: what is searched, here and on a machine that is recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from course.config import Config
from labs.day3_3_large_batch.configs import crops_config

# All of the crops six times, 1,024 at once: what an H100 trains in eight seconds. 1,024 crops
# validate, so that as many as 7,168 are left which no search has seen.
FULL: dict[str, Any] = {"val_images": 1024, "val_steps": 1, "save_weights": True}
BATCH, RATE = 1024, 0.1  # the first trial's
SHORT = {"epochs": 2, "lr_warmup": 12}  # where only seeds differ
# On a processor: so few crops, four times.
QUICK: dict[str, Any] = {
    "epochs": 4,
    "steps": 6,
    "val_images": 512,
    "val_steps": 8,
    "lr_warmup": 3,
    "warmup_steps": 2,
}
QUICK_BATCH, QUICK_RATE = 128, 0.3
SPACE = {
    "lr": (0.01, 10.0, "log"),
    "momentum": (0.5, 0.98),
    "weight_decay": (1e-5, 1e-2, "log"),
    "lr_warmup": (0, 96),
}
SEEDS = {"seed": [*range(16)]}
# What an H100 has searched, what matters most first; each with its sampler and the rest.
SEARCHES: dict[str, dict[str, Any]] = {
    "tpe-median": {"sampler": "tpe", "space": SPACE, "trials": 16, "pruner": "median"},
    "seeds": {"sampler": "grid", "space": SEEDS},
    "random": {"sampler": "random", "space": SPACE, "trials": 16},
    "tpe-hyperband": {"sampler": "tpe", "space": SPACE, "trials": 16, "pruner": "hyperband"},
}


def search_config(*, quick: bool = False, **own: Any) -> Config:
    """What a search begins with: a training on crops, validated after each epoch.

    Args:
        quick: small enough for two cores of a processor.
        own: fields of a Config that are otherwise.
    """
    if quick:
        found = crops_config(QUICK_BATCH, QUICK_RATE, "search", quick=True, **QUICK)
    else:
        found = crops_config(BATCH, RATE, "search", **FULL)
    return replace(found, **own)


def asked(name: str) -> dict[str, Any]:
    """The arguments of a search that is recorded: those of `topics.search.search`."""
    own = SHORT if name == "seeds" else {}
    return SEARCHES[name] | {"config": search_config(**own), "name": name}
