"""Lab 3.3: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import Check, Function, FunctionCheck, Lab, Recording
from course.checks.lab_configs import READER_SETTINGS
from course.runs.run import Run
from labs.day3_3_large_batch import configs as learning

UPDATED = READER_SETTINGS | {"workers": 0}


def _describe_rates(run: Run) -> str:
    rates = run.steps["lr"].dropna()
    return f"learning rates: {', '.join(f'{rate:.2g}' for rate in rates)}"


CHECKS = {
    "day3.groups": Check(
        title="weight decay spares BatchNorm and biases",
        todo=14,
        configs=({"rung": "channels_last"}, {"rung": "no_norm_decay"}),
        rung="no_norm_decay",
        against="channels_last",
        shows={"weight decay": "decay"},
        settings=UPDATED,
        timed=False,
    ),
    "day3.find": Check(
        title="the learning rate is searched",
        todo=15,
        configs=(
            {"rung": "channels_last"},
            {"rung": "find", "norm_decay": False},
            {"rung": "find", "epochs": 1, "steps": 5},
            {"rung": "find", "precision": "fp16", "overflow_step": 1},
        ),
        rung="find",
        against="channels_last",
        describe=_describe_rates,
        settings=UPDATED,
        timed=False,
    ),
}


def _trust_ratio() -> FunctionCheck:
    from labs.day3_3_large_batch import verify

    return FunctionCheck(verify.trust_ratio, verify.check_ratio, verify.check_update)


LAB = Lab(
    number="3.3",
    title="large batches that still learn",
    minutes=75,
    checks=CHECKS,
    functions={"large_batch.trust_ratio": Function("LARS's trust ratio", _trust_ratio)},
    recordings=(
        Recording("optimizers", [*map(learning.step_config, ("sgd", *learning.OPTIMIZERS))]),
        Recording("learning", [*learning.learning_configs()]),
    ),
    jobs="8, of 8 runs",
    prepare="the crops, 240 MB, are made by the first run",
    stuck="which update has `cfg.lr`: the last, not the one after it",
)
