"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose
from typing import Any

from course import Run
from course.lab import (
    NOT_APPLICABLE,
    Exercise,
    Fact,
    Function,
    FunctionCheck,
    Lab,
    Rank,
    Recording,
    configs,
)
from labs.large_batch import configs as learning

UPDATED = configs.READER_SETTINGS | {"workers": 0}


def _describe_rates(run: Run) -> str:
    rates = run.steps["lr"].dropna()
    return f"learning rates: {', '.join(f'{rate:.2g}' for rate in rates)}"


def _decay(rank: Rank) -> dict[str, float]:
    decay = rank.notes.decay
    decay = {} if decay is NOT_APPLICABLE else decay
    return {f"weight decay of {name}": x for name, x in decay.items()}


def _rates(rank: Rank) -> list[float]:
    """Return the learning rate of the first group at each update."""
    return [groups[0][0]["lr"] for groups in rank.notes.groups]


def _search(
    value: Callable[[list[float], float], Any], precision: str = "fp32"
) -> Callable[[Rank], Any]:
    """Return a function of a rank that gives the rates of a search and cfg.lr to `value`."""

    def read(rank: Rank) -> Any:
        cfg, rates = rank.config, _rates(rank)
        is_search = cfg.schedule == "find" and cfg.precision == precision
        return value(rates, cfg.lr) if is_search and rates else NOT_APPLICABLE

    return read


GROUPS = (
    Fact("", _decay, "filters and matrices (`weight.ndim > 1`) get cfg.weight_decay; vectors get "
         "it only if cfg.norm_decay, and otherwise 0"),
)  # fmt: skip
SEARCH = (
    Fact("learning rate without a search",
         lambda rank: NOT_APPLICABLE if rank.config.schedule == "find"
         else [*_rates(rank), NOT_APPLICABLE][0],
         'change it only if cfg.schedule == "find"'),
    Fact("result of LambdaLR's function",
         _search(lambda rates, lr: "a rate" if isclose(rates[-1], lr**2) else "a factor"),
         "LambdaLR multiplies it by cfg.lr"),
    Fact("learning rate of the first update", _search(lambda rates, lr: rates[0]),
         "the first update must have cfg.lr / 10,000: count updates from 0, so that f(0) is 1e-4, "
         "and change the rate after each update, in a post hook"),
    Fact("number of different learning rates", _search(lambda rates, lr: len({*rates})),
         "each update has its own: call `step()` in the optimizer's post hook"),
    Fact("learning rate of the last update", _search(lambda rates, lr: rates[-1]),
         "the last update must have cfg.lr: count updates from 0, over all epochs"),
    Fact("rate ÷ the rate before",
         _search(lambda rates, lr: [new / old for old, new in zip(rates, rates[1:])]),
         "the factor is always the same, so f is a power, `1e4 ** exponent`", "update"),
    Fact("learning rate", _search(lambda rates, lr: rates, "fp16"),
         "a skipped step is no update: `optimizer.register_step_post_hook(…)` runs only after "
         "updates", "update"),
    Fact("number of learning rates in one update",
         lambda rank: max((len({group[0]["lr"] for group in groups})
                           for groups in rank.notes.groups), default=NOT_APPLICABLE),
         "change the rate of every group, as LambdaLR does"),
)  # fmt: skip
EXERCISES = {
    "param_groups": Exercise(
        title="weight decay spares BatchNorm and biases",
        configs=({"rung": "channels_last"}, {"rung": "no_norm_decay", "weight_decay": 0.05}),
        calls=("course.checks.dry_runs:agreeing",),
        rung="no_norm_decay",
        causes=GROUPS,
        against="channels_last",
        shows={"weight decay": "decay"},
        settings=UPDATED,
        timed=False,
    ),
    "lr_range_test": Exercise(
        title="the learning rate is searched",
        configs=(
            {"rung": "channels_last", "schedule": "cosine"},
            {"rung": "find", "norm_decay": False},
            {"rung": "find", "epochs": 1, "steps": 5, "lr": 0.05},
            {"rung": "find", "precision": "fp16", "overflow_step": 1},
        ),
        calls=("course.checks.dry_runs:agreeing",),
        rung="find",
        causes=SEARCH,
        against="channels_last",
        describe=_describe_rates,
        settings=UPDATED,
        timed=False,
    ),
}


def _noise_scale() -> FunctionCheck:
    from labs.large_batch import verify

    return FunctionCheck(verify.noise_scale, verify.check_scale, verify.check_estimate)


def _trust_ratio() -> FunctionCheck:
    from labs.large_batch import verify

    return FunctionCheck(verify.trust_ratio, verify.check_ratio, verify.check_update)


LAB = Lab(
    title="large batches that still learn",
    minutes=90,
    exercises=EXERCISES,
    functions={
        "large_batch.noise_scale": Function("the gradient noise scale", _noise_scale),
        "large_batch.trust_ratio": Function("LARS's trust ratio", _trust_ratio),
    },
    recordings=(
        Recording("optimizers", [*map(learning.step_config, ("sgd", *learning.OPTIMIZERS))]),
        Recording("learning", [*learning.learning_configs()], keep="losses"),
    ),
    jobs="8, of 8 runs",
    prepare="the crops, 230 MB, are made by the first run",
    stuck="which update has `cfg.lr`: the last, not the one after it",
)
