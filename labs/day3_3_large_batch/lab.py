"""Lab 3.3: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from collections.abc import Iterator

from course.checks import optimizer_steps as updates
from course.checks.lab import Lab, Mechanism, Recording
from course.runs.run import Run
from labs.day3_1_formats.lab import READER_SETTINGS
from labs.day3_3_large_batch import configs as learning

UPDATED = READER_SETTINGS | {"workers": 0}

OTHER_RATES = 0.3  # of a step's loss: of small steps, with another learning rate


def _grouped_seen(run: Run) -> str:
    found = updates.decays(run.record.evidence, run.config) or {}
    return "weight decay: " + ", ".join(f"{kind} {decay}" for kind, decay in found.items())


def _search_faults(run: Run, against: Run) -> Iterator[str]:
    if run.config.schedule == "find" and (told := updates.rates(run)):
        yield f"{told}: cfg.lr / 10,000 at the first, cfg.lr at the last, and between them"


def _search_seen(run: Run) -> str:
    found = run.steps["lr"].dropna()
    return f"{len(found)} updates, from {found.iloc[0]:.3g} to {found.iloc[-1]:.3g}, as is due"


CHECKS = {
    "day3.groups": Mechanism(
        title="weight decay spares BatchNorm and biases",
        todo=14,
        rung="no_norm_decay",
        against="channels_last",
        seen=_grouped_seen,
        word="optimizers.create",
        settings=UPDATED,
        timed=False,
    ),
    "day3.find": Mechanism(
        title="the learning rate is searched",
        todo=15,
        rung="find",
        against="channels_last",
        seen=_search_seen,
        word="optimizers.schedule",
        faults=_search_faults,
        settings=UPDATED,
        tolerance=OTHER_RATES,
        timed=False,
    ),
}

LAB = Lab(
    number="3.3",
    title="many images an update, and still learning",
    minutes=75,
    checks=CHECKS,
    recordings=(
        Recording("optimizers", [*map(learning.step_config, ("sgd", *learning.OPTIMIZERS))]),
        Recording("learning", [*learning.learning_configs()]),
    ),
    jobs="8, of 8 runs",
    prepare="the crops, 240 MB, are made by the first run",
    stuck="which update has `cfg.lr`: the last, not the one after it",
)
