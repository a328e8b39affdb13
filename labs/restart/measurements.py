"""Trainings that save checkpoints: what saving costs, and what it saves after an interruption."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from course import Config, Run, rung
from course.jobs import JobError, refresh
from course.lab import FULL_SIZE, NOT_APPLICABLE, SYNTHETIC, Recording

if TYPE_CHECKING:
    import pandas as pd

OWN_SCRIPT = {"script": "train_restarted.py"}
METHODS = ("never", "torch.save", "async_save")
# CoAtNet-3, whose weights and AdamW's two means are 2 GB.
LARGE: dict[str, Any] = SYNTHETIC | {
    "model": "coatnet_3_224",
    "fused": True,
    "batch_size": 128,
    "steps": 32,
    "warmup_steps": 8,
}
# The rehearsal of a training on ImageNet on two processes of a CPU: the recipe stays the same.
SMALL_IMAGENET: dict[str, Any] = {
    "data": "default", "format": "files", "model": "resnet18", "algebra": False, "start_px": 32,
    "image_px": 64, "val_px": 64, "start_ramp": 3, "end_ramp": 6, "batch_size": 24, "epochs": 8,
    "steps": 6, "warmup_steps": 1, "val_images": 96, "lr": 4.0, "ema": 0.9, "save_every": 6,
    "workers": 1, "device": "cpu",
}  # fmt: skip


def _saving_fields(method: str, every: int) -> dict[str, Any]:
    if method == "never":
        return {}
    return {**OWN_SCRIPT, "save_every": every, "async_save": method == "async_save"}


def _recorded_saving(method: str, *, large: bool = False, rarely: bool = False) -> Config:
    """Return the config of ResNet-50 or CoAtNet-3 that saves every 8 or 24 steps, at full size."""
    size, base = (LARGE, "large") if large else (FULL_SIZE, "channels_last")
    settings = size | _saving_fields(method, every=24 if rarely else 8)
    settings |= {"steps": 56} if rarely else {}
    name = f"saving-{method.replace('.', '-')}" + "-large" * large + "-seldom" * rarely
    return rung(base, **settings, rung=name)


def _recorded_repeat(repeat: str, *, deterministic: bool, precision: str) -> Config:
    """Return the config of ResNet-50 on a busy GPU; repeat, "first" or "again", is in the label."""
    name = "-".join(["repeatable"] * deterministic + [precision, repeat])
    settings = FULL_SIZE | {"precision": precision}
    settings |= OWN_SCRIPT | {"deterministic": True} if deterministic else {}
    return rung("channels_last", **settings, rung=name)


def _configs() -> Iterator[Config]:
    for repeat in ("first", "again"):
        for deterministic in (False, True):
            yield _recorded_repeat(repeat, deterministic=deterministic, precision="fp16")
    yield from (_recorded_saving(method) for method in METHODS)
    # Compared with the one that never saves.
    yield _recorded_repeat("first", deterministic=True, precision="bf16")
    yield from (_recorded_saving(method, large=True) for method in METHODS)
    yield _recorded_saving("async_save", large=True, rarely=True)


RECORDINGS = (Recording("practice", [*_configs()]),)


def save_method(config: Config) -> str:
    """Return how a config saves: one of METHODS."""
    if not config.save_every:
        return "never"
    return "async_save" if config.async_save else "torch.save"


def saving_costs(runs: Iterable[Run]) -> pd.DataFrame:
    """Return what saving costs, by model and method.

    Columns: model, saved (the method), every (steps), step_ms (the median step), after_ms (the
    median step after a save), save_ms (their difference), mean_ms (of all steps after warm-up),
    cost (of the mean, relative to the run that never saves).
    """
    import pandas as pd  # not at the start: every command that lists the labs would wait for it

    runs = sorted(runs, key=lambda run: (run.config.model, METHODS.index(save_method(run.config))))
    table = pd.DataFrame(_step_times(run) for run in runs)
    never = table[table["saved"] == "never"].set_index("model")["mean_ms"]
    table["cost"] = table["mean_ms"] / table["model"].map(never) - 1
    return table


def _step_times(run: Run) -> dict[str, Any]:
    """Return a run's row of `saving_costs`, without the cost."""
    cfg = run.config
    ms = run.steps[run.steps["step"] >= cfg.warmup_steps].set_index("step")["step_s"] * 1e3
    is_after = (ms.index % cfg.save_every == 0) if cfg.save_every else ms.index < 0
    usual, after = ms[~is_after].median(), ms[is_after].median()
    return {
        "model": cfg.model,
        "saved": save_method(cfg),
        "every": cfg.save_every,
        "step_ms": usual,
        "after_ms": after,
        "save_ms": after - usual,
        "mean_ms": ms.mean(),
    }


def first_step(run: Run) -> int:
    """Return the number of steps that earlier processes of a run completed."""
    began_at = run.record.evidence.began_at
    return 0 if began_at is NOT_APPLICABLE else began_at


def compare_losses(run: Run, reference: Run) -> pd.DataFrame:
    """Compare the losses of a run that was stopped with one that was not, step by step.

    Columns: stopped, uninterrupted, process (1, and 2 after the restart), same.
    """
    import pandas as pd

    losses = [run_.steps.set_index("step")["loss"] for run_ in (run, reference)]
    table = pd.concat(losses, axis=1, keys=["stopped", "uninterrupted"])
    table["process"] = 1 + (table.index >= first_step(run))
    table["same"] = table["stopped"] == table["uninterrupted"]
    return table


def lost_share(save_min: float, every_h: float, nodes: int, broken_days: float) -> float:
    """Return the share of a training's time lost by saving and by repeating steps.

    After an accident, half of the interval between two checkpoints is repeated, on average. The
    best interval makes both parts equal (Young 1974, doi 10.1145/361147.361115).

    Args:
        save_min: minutes per checkpoint.
        every_h: hours between two checkpoints.
        nodes: the number of nodes; all restart when one breaks.
        broken_days: mean days until one node breaks.
    """
    accidents_per_hour = nodes / (24 * broken_days)
    return save_min / 60 / every_h + accidents_per_hour * every_h / 2


def wait_for_steps(run: Run, steps: int, timeout_s: float = 300.0) -> Run:
    """Wait until a run has made a number of steps, and return it.

    Raises:
        JobError: the run ended before, or did not get so far in time.
    """
    deadline = time.monotonic() + timeout_s
    while len(run.steps) < steps:
        status = refresh(run)
        if status not in ("queued", "running") or time.monotonic() > deadline:
            raise JobError(f"{run.name} is {status} after {len(run.steps)} of {steps} steps")
        time.sleep(0.2)
    return run
