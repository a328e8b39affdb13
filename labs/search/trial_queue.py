"""The trials of a search: start the next one, and report results. Any process may do both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from course import Run
from course.jobs import launch_planned, plan_run, refresh
from course.lab import from_dict
from course.runs import Record
from labs.search.trials import ABOUT, PRUNED, open_study

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

SAMPLERS = ("grid", "random", "tpe")
RANDOM_FIRST = 5  # trials that TPE draws at random before it has anything to learn from
HOOKS = ("labs.search.trials:Pruning",)
SNAPSHOT = "train.py"  # a copy of the script in the study's folder: all trials run the same


def read_request(folder: Path) -> dict[str, Any]:
    """Read a search's request: script, config, space, sampler, pruner, seed, site."""
    return json.loads((folder / ABOUT).read_text())


def locked(folder: Path) -> FileLock:
    """Return the lock of a study; a process that dies releases it."""
    return FileLock(folder / ".trials.lock", mode=0o600)


def take(folder: Path, max_trials: int) -> Run | None:
    """Begin the next trial and return its run, or None if there is none left.

    Args:
        max_trials: in total.
    """
    with locked(folder):
        study = open_study(folder)
        trials = study.get_trials(deepcopy=False)
        if len(started(trials)) >= max_trials:
            return None
        request = read_request(folder)
        study.sampler = sampler(request["sampler"], request["seed"], len(trials))
        trial = study.ask(_distributions(request))
        run = _launch(folder, request, trial.number, trial.params)
        trial.set_user_attr("run", run.name)
        return run


def started(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that run or are over."""
    return [trial for trial in trials if trial.state.name != "WAITING"]


def sampler(name: str, seed: int, number: int) -> BaseSampler:
    """Create the sampler of a trial; each trial has a new one, so that any process can."""
    from optuna import samplers

    trial_seed = seed * 100_003 + number
    if name == "tpe":
        return samplers.TPESampler(seed=trial_seed, n_startup_trials=RANDOM_FIRST)
    return samplers.RandomSampler(seed=trial_seed)  # trials of a grid already have their values


def _distributions(request: dict[str, Any]) -> dict[str, Any]:
    from optuna.distributions import json_to_distribution

    return {name: json_to_distribution(text) for name, text in request["space"].items()}


def _launch(folder: Path, request: dict[str, Any], number: int, params: dict[str, Any]) -> Run:
    """Launch a trial, with the script as it was when the search began."""
    config = from_dict(request["config"] | params | {"rung": f"{request['label']}-{number:02d}"})
    limits = {"site": request["site"], "time_min": request["time_min"]}
    plan = plan_run(folder / SNAPSHOT, config, **limits, hooks=HOOKS)
    trial = {"study": folder.name, "number": number, "params": params, "space": request["space"]}
    changes = {"source": Path(request["script"]), "request": plan.request | {"trial": trial}}
    return launch_planned(replace(plan, **changes))


def finish(folder: Path, run: Run) -> None:
    """Report a trial's record to the study; a second report changes nothing."""
    with locked(folder):
        study = open_study(folder)
        trial = study.get_trials(deepcopy=False)[run.launched["trial"]["number"]]
        if not trial.state.is_finished():
            _report(study, trial, run.record)


def _report(study: Study, trial: FrozenTrial, record: Record) -> None:
    from optuna.trial import TrialState

    if record.status == "ok":
        study.tell(trial.number, record.val_top1)
    elif is_pruned(record):
        study.tell(trial.number, state=TrialState.PRUNED)
    else:
        study.tell(trial.number, state=TrialState.FAIL)


def is_pruned(record: Record) -> bool:
    """Return whether the pruner stopped the run."""
    return record.status == "cancelled" and record.error.startswith(PRUNED)


def finish_ended(folder: Path, runs_root: Path) -> list[Run]:
    """Report trials that have ended.

    Returns:
        The runs that are queued or running.
    """
    active = []
    for trial in _running(folder):
        if name := trial.user_attrs.get("run"):
            run = Run(runs_root / name)
            if refresh(run) in ("queued", "running"):
                active.append(run)
            else:
                finish(folder, run)
    return active


def _running(folder: Path) -> list[FrozenTrial]:
    from optuna.trial import TrialState

    with locked(folder):
        study = open_study(folder)
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for trial in running:
            if "run" not in trial.user_attrs:  # a search that died; a live one would hold the lock
                study.tell(trial.number, state=TrialState.FAIL)
        return running
