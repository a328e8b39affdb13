"""The trials of a search: which is next, and what came of it. Any process may ask and tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from course.config import from_dict
from course.jobs.launch import refresh
from course.jobs.plan import Plan, plan
from course.runs.record import Record
from course.runs.run import Run
from course.training.trials import ABOUT, PRUNED, open_study

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

SAMPLERS = ("grid", "random", "tpe")
RANDOM_FIRST = 5  # trials that TPE draws before it has anything to learn from
ATTEMPTS = 3  # at a trial that is lost by no fault of its own
SNAPSHOT = "train.py"  # of the script, in the study's folder: all trials run the same


def about(folder: Path) -> dict[str, Any]:
    """What is searched: script, config, space, sampler, pruner, seed, site."""
    return json.loads((folder / ABOUT).read_text())


def locked(folder: Path) -> FileLock:
    """Held by whoever takes a trial or says what came of it; a process that dies lets it go."""
    return FileLock(folder / ".trials.lock")


def take(folder: Path, most: int, begin: Callable[[Plan], Run], worker: str = "") -> Run | None:
    """Begin the next trial: a run. None: all are taken.

    Args:
        most: trials in all; those that were lost and taken up again do not count twice.
        begin: starts the run, or makes its folder.
        worker: who it is that takes it.
    """
    with locked(folder):
        study = open_study(folder)
        known = study.get_trials(deepcopy=False)
        if len(begun(known)) >= most:
            return None
        asked = about(folder)
        study.sampler = sampler(asked["sampler"], asked["seed"], len(known))
        trial = study.ask(_distributions(asked))
        trial.set_user_attr("worker", worker)
        run = begin(_planned(folder, asked, trial.number, trial.params))
        trial.set_user_attr("run", run.name)
        return run


def begun(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Trials that run or are over, but for those that are to be made again, or were."""
    again = {each.user_attrs.get("again") for each in trials}
    return [each for each in trials if each.state.name != "WAITING" and each.number not in again]


def sampler(name: str, seed: int, number: int) -> BaseSampler:
    """What chooses the values of a trial. Of each trial anew, so that any process may do it."""
    from optuna import samplers

    own = seed * 100_003 + number
    if name == "tpe":
        return samplers.TPESampler(seed=own, n_startup_trials=RANDOM_FIRST)
    return samplers.RandomSampler(seed=own)  # of a grid all trials wait with their values


def _distributions(asked: dict[str, Any]) -> dict[str, Any]:
    from optuna.distributions import json_to_distribution

    return {name: json_to_distribution(text) for name, text in asked["space"].items()}


def _planned(folder: Path, asked: dict[str, Any], number: int, params: dict[str, Any]) -> Plan:
    """The launch of a trial, by the script as it was when the search began."""
    config = from_dict(asked["config"] | params | {"rung": f"{asked['label']}-{number:02d}"})
    made = plan(folder / SNAPSHOT, config, site=asked["site"], time_min=asked["time_min"])
    trial = {"study": folder.name, "number": number, "params": params, "space": asked["space"]}
    return replace(made, source=Path(asked["script"]), request=made.request | {"trial": trial})


def finish(folder: Path, run: Run) -> None:
    """Tell the study what the record of a trial says; twice is as good as once."""
    with locked(folder):
        study = open_study(folder)
        number, record = run.launched["trial"]["number"], run.record
        trial = study.get_trials(deepcopy=False)[number]
        if not trial.state.is_finished():
            _tell(study, trial, record)


def _tell(study: Study, trial: FrozenTrial, record: Record) -> None:
    from optuna.trial import TrialState

    if record.status == "ok":
        study.tell(trial.number, record.val_top1)
    elif is_pruned(record):
        study.tell(trial.number, state=TrialState.PRUNED)
    else:
        if is_accident(record):
            _again(study, trial)
        study.tell(trial.number, state=TrialState.FAIL)


def _again(study: Study, trial: FrozenTrial) -> None:
    """Have a trial's values tried once more, by whoever is free."""
    known = study.get_trials(deepcopy=False)
    attempt = trial.user_attrs.get("attempt", 1)
    if attempt < ATTEMPTS and all(each.user_attrs.get("again") != trial.number for each in known):
        attributes = {"again": trial.number, "attempt": attempt + 1}
        study.enqueue_trial(trial.params, user_attrs=attributes)


def is_pruned(record: Record) -> bool:
    """Did the run end for what it had reported?"""
    return record.status == "cancelled" and record.error.startswith(PRUNED)


def is_accident(record: Record) -> bool:
    """Did something end the run that neither its script nor anybody had asked for?

    Its process or node is gone, or its worker came to the end of the job's time. A trial that is
    out of memory, was cancelled, or took its own time_min, would or should end so again.
    """
    told = {"failed": "Slurm: FAILED", "timeout": "Slurm: TIMEOUT"}.get(record.status)
    return record.status == "lost" or bool(told and record.error.startswith(told))


def heal(folder: Path, runs_root: Path) -> list[Run]:
    """Tell the study of trials whose end nobody told, as their worker is gone.

    Returns:
        The runs of those that are under way.
    """
    alive = []
    for trial in _running(folder):
        if name := trial.user_attrs.get("run"):
            run = Run(runs_root / name)
            if refresh(run) in ("queued", "running"):
                alive.append(run)
            else:
                finish(folder, run)
    return alive


def _running(folder: Path) -> list[FrozenTrial]:
    from optuna.trial import TrialState

    with locked(folder):
        study = open_study(folder)
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for trial in running:
            if "run" not in trial.user_attrs:  # who took it died, or it would have the lock
                _again(study, trial)
                study.tell(trial.number, state=TrialState.FAIL)
        return running
