"""What checkpoints cost a training, and what they save when it is stopped."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from course.config import Config
from course.runs.ratio import ratio
from course.runs.run import Run

NEVER = "never"


def way_of(config: Config) -> str:
    """How a config saves, in a word."""
    if not config.save_every:
        return NEVER
    return "async_save" if config.async_save else "torch.save"


def costs(runs: Iterable[Run]) -> pd.DataFrame:
    """What saving costs, one row a run; the one that never saves comes first.

    Columns: model, saved (how), every (so many steps), step_ms (the median step), behind_ms (the
    median of those that follow a save, in which it takes place), save_ms (their difference),
    mean_ms (over all steps after warm-up), cost (of the mean, over that of the run that never
    saves).
    """
    rows = [steps_of(run) for run in runs]
    table = pd.DataFrame(rows).sort_values(["model", "saved"], key=_order, kind="stable")
    table = table.reset_index(drop=True)
    never = table[table["saved"] == NEVER].set_index("model")["mean_ms"]
    table["cost"] = table["mean_ms"] / table["model"].map(never) - 1
    return table


def _order(column: pd.Series) -> pd.Series:
    places = {NEVER: 0, "torch.save": 1, "async_save": 2}
    return column.map(places) if column.name == "saved" else column


def steps_of(run: Run) -> dict[str, object]:
    """A run's row of `costs`, but for what it costs."""
    cfg = run.config
    steps = run.steps[run.steps["step"] >= cfg.warmup_steps].set_index("step")["step_s"] * 1e3
    follows = (steps.index % cfg.save_every == 0) if cfg.save_every else steps.index < 0
    usual, behind = steps[~follows].median(), steps[follows].median()
    return {
        "model": cfg.model,
        "saved": way_of(cfg),
        "every": cfg.save_every,
        "step_ms": usual,
        "behind_ms": behind,
        "save_ms": behind - usual,
        "mean_ms": steps.mean(),
    }


def gained(runs: Iterable[Run]) -> pd.DataFrame:
    """Of runs that took turns, images per second over those of the one that never saves.

    Columns: saved (how), ratio, low, high (the ends of its 95 % interval), turns.
    """
    every = [*runs]
    never = next(run for run in every if way_of(run.config) == NEVER)
    rows = []
    for run in every:
        if run is not never:
            found = ratio(run, never)
            own = {"saved": way_of(run.config), "ratio": found.value}
            rows.append(own | {"low": found.low, "high": found.high, "turns": found.turns})
    return pd.DataFrame(rows)


def joined(run: Run, whole: Run) -> pd.DataFrame:
    """The losses of a run that was stopped beside those of the same that was not, step by step.

    Columns: stopped, whole, process (of the stopped one: 1 until it went on, then 2), same.
    """
    losses = [each.steps.set_index("step")["loss"] for each in (run, whole)]
    table = pd.concat(losses, axis=1, keys=["stopped", "whole"])
    table["process"] = 1 + (table.index >= run.record.evidence.get("began_at", 0))
    table["same"] = table["stopped"] == table["whole"]
    return table


def lost(save_min: float, every_h: float, nodes: int, broken_days: float) -> float:
    """The share of a training's time that saving, and steps done twice, take.

    After an accident half of the time between two checkpoints is done again, on average. The best
    distance between two is the one for which both parts are equal (Young 1974,
    doi 10.1145/361147.361115).

    Args:
        save_min: minutes that a checkpoint takes.
        every_h: hours between two.
        nodes: that take part; if one breaks, all begin anew.
        broken_days: after so many days a node breaks, on average.
    """
    if min(every_h, broken_days, nodes) <= 0:
        raise ValueError("every_h, nodes and broken_days must be above 0")
    accidents_an_hour = nodes / (24 * broken_days)
    return save_min / 60 / every_h + accidents_an_hour * every_h / 2
