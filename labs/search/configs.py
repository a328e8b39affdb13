"""Searches of this lab, live and recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from course import Config
from labs.large_batch.configs import crops_config

# An H100 trains on all crops six times, 1,024 per batch, in eight seconds. 1,024 crops validate, so
# that 7,168 remain that no search has used.
FULL: dict[str, Any] = {"val_images": 1024, "val_steps": 1, "save_weights": True}
SHORT = {"epochs": 2, "lr_warmup": 12}  # where only seeds differ
# On a CPU: fewer crops, four times.
QUICK: dict[str, Any] = {
    "epochs": 4,
    "steps": 6,
    "val_images": 512,
    "val_steps": 8,
    "lr_warmup": 3,
    "warmup_steps": 2,
}
SPACE = {
    "lr": (0.01, 10.0, "log"),
    "momentum": (0.5, 0.98),
    "weight_decay": (1e-5, 1e-2, "log"),
    "lr_warmup": (0, 96),
}
# Recorded searches, the most important first, with the arguments of `studies.search`.
SEARCHES: dict[str, dict[str, Any]] = {
    "tpe-median": {"sampler": "tpe", "space": SPACE, "trials": 16, "pruner": "median"},
    "seeds": {"sampler": "grid", "space": {"seed": [*range(16)]}},
    "random": {"sampler": "random", "space": SPACE, "trials": 16},
    "tpe-hyperband": {"sampler": "tpe", "space": SPACE, "trials": 16, "pruner": "hyperband"},
}


def search_config(*, quick: bool = False, **settings: Any) -> Config:
    """Return the config that a search begins with, validated after each epoch.

    Args:
        quick: small enough for two CPU cores.
        settings: further fields of the Config.
    """
    if quick:
        config = crops_config(128, 0.3, "search", quick=True, **QUICK)
    else:
        config = crops_config(1024, 0.1, "search", **FULL)
    return replace(config, **settings)


def recorded_search(name: str) -> dict[str, Any]:
    """Return the arguments of `studies.search` for a recorded search."""
    settings = SHORT if name == "seeds" else {}
    return SEARCHES[name] | {"config": search_config(**settings), "name": name}
