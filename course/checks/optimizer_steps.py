"""What an optimizer's steps show: how often, with which settings, and what was left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from course.config import Config
from course.runs.run import Run

Evidence = dict[str, Any]
OPTIMIZER = ("lr", "momentum", "weight_decay", "optimizer", "lr_warmup", "schedule", "norm_decay")
WITH_MOMENTUM = ("sgd", "nesterov", "lars", "schedulefree")  # as the config has it
SPAN = 1e4  # between the first and the last learning rate of a search
OVERFLOW_SCALES = 2.0  # a scale that has met an overflow is at most half of what it was


def counts(seen: Evidence, cfg: Config) -> str | None:
    """How often the optimizer stepped in a step; a scaler may leave steps out."""
    found = dict(seen.get("updates") or {})
    if cfg.precision == "fp16" or (seen.get("loss_gradient") or 1) != 1:
        found.pop("0", None)
    return " or ".join(sorted(found)) or None


def settings(seen: Evidence, cfg: Config) -> dict[str, str] | None:
    """The optimizer's, each with all the values that any group ever had."""
    values: dict[str, set[float]] = {}
    for group in seen.get("groups") or []:
        for name, value in group.items():
            values.setdefault(name, set()).add(value)
    due = due_settings(cfg)  # a schedule changes others
    return {
        name: " and ".join(f"{each:g}" for each in sorted(found))
        for name, found in values.items()
        if name in due
    } or None


def due_settings(cfg: Config, run: Run | None = None) -> dict[str, str]:
    """The settings that stay as the config has them."""
    due = {} if cfg.schedule or cfg.lr_warmup else {"lr": f"{cfg.lr:g}"}
    if cfg.optimizer in WITH_MOMENTUM and cfg.schedule != "one_cycle":
        due["momentum"] = f"{cfg.momentum:g}"
    of_others = "" if cfg.norm_decay or not cfg.weight_decay else "0 and "
    return due | {"weight_decay": f"{of_others}{cfg.weight_decay:g}"}


def decays(seen: Evidence, cfg: Config) -> dict[str, str] | None:
    """What pulls at filters and at vectors, each with all the values that some of them have."""
    found = seen.get("decay") or {}
    return {kind: " and ".join(f"{x:g}" for x in sorted(found[kind])) for kind in found} or None


def due_decays(cfg: Config, run: Run | None = None) -> dict[str, str]:
    """BatchNorm's weights and biases are the vectors of a network."""
    decay = f"{cfg.weight_decay:g}"
    return {"filters": decay, "vectors": decay if cfg.norm_decay else "0"}


def rates(run: Run) -> str:
    """How the learning rate of a search differs from what it should be; "" where it does not."""
    cfg, last = run.config, run.config.epochs * run.config.steps - 1
    found = run.steps["lr"].dropna().to_numpy()  # a step that was left out has none
    due = cfg.lr * SPAN ** (np.arange(len(found)) / last - 1)
    if np.allclose(found, due, rtol=1e-3, atol=0):
        return ""
    at = int(np.argmin(np.isclose(found, due, rtol=1e-3, atol=0)))
    return f"update {at} had the learning rate {found[at]:.3g}, and {due[at]:.3g} is due"


def overflow(seen: Evidence, cfg: Config) -> str | None:
    """What the optimizer did with the gradient that was made infinite on purpose."""
    found = seen.get("overflow")
    if found is None or cfg.precision != "fp16" or not cfg.overflow_step:
        return None
    if seen.get("began_at"):  # it lies behind
        return None
    if not found:  # none was planted: a scaler left out all steps until then
        return "skipped" if _is_lowered(seen) else "left out every step before"
    return "skipped" if found["skipped"] else "stepped with"


def _is_lowered(seen: Evidence) -> bool:
    """Has the scaler made its scale smaller, as after an overflow of its own?"""
    first, later = seen.get("scale"), (seen.get("later") or {}).get("scale")
    return bool(first and later) and later * OVERFLOW_SCALES <= first


def scale_after(seen: Evidence, cfg: Config) -> str | None:
    """The scaler's scale after the overflow; one by hand may stay as it is."""
    later = (seen.get("later") or {}).get("scale")
    if not (seen.get("overflow") and seen.get("scale") and later):
        return None
    return "smaller" if _is_lowered(seen) else f"{later:g} still"
