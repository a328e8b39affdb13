"""What an optimizer's steps show: how often, with which settings, and what was left out."""

from __future__ import annotations

from typing import Any

from course.config import Config
from course.runs.run import Run

Evidence = dict[str, Any]
OPTIMIZER = ("lr", "momentum", "weight_decay", "optimizer", "lr_warmup", "schedule", "norm_decay")
WITH_MOMENTUM = ("sgd", "nesterov", "lars", "schedulefree")  # as the config has it
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
        for name, found in values.items() if name in due
    } or None  # fmt: skip


def due_settings(cfg: Config, run: Run | None = None) -> dict[str, str]:
    """The settings that stay as the config has them."""
    due = {} if cfg.schedule or cfg.lr_warmup else {"lr": f"{cfg.lr:g}"}
    if cfg.optimizer in WITH_MOMENTUM and cfg.schedule != "one_cycle":
        due["momentum"] = f"{cfg.momentum:g}"
    of_others = "" if cfg.norm_decay or not cfg.weight_decay else "0 and "
    return due | {"weight_decay": f"{of_others}{cfg.weight_decay:g}"}


def overflow(seen: Evidence, cfg: Config) -> str | None:
    """What the optimizer did with the gradient that was made infinite on purpose."""
    found = seen.get("overflow")
    if found is None or cfg.precision != "fp16" or not cfg.overflow_step:
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
