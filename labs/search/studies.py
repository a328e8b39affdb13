"""Search for hyperparameters: each trial is a run, and the state of a search is in its folder."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout
from tqdm import tqdm

from course import Config, Run
from course.jobs import JobError, plan_run, sites
from course.runs import runs_root, write_atomically
from labs.search import trial_queue
from labs.search.space import Space, combinations, contains, distributions
from labs.search.tables import epochs_table, trials_table
from labs.search.trials import ABOUT, FOLDER, PRUNERS, open_study

MAX_FAILURES = 3  # failed trials at the beginning
POLL_S = 0.3  # between two looks at the trials


@dataclass(frozen=True, repr=False)
class Search:
    """A search, read from its folder."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def runs(self) -> list[Run]:
        """The trials' runs, in their order."""
        root = self.folder.parent.parent
        trials = open_study(self.folder).get_trials(deepcopy=False)
        return [
            Run(root / trial.user_attrs["run"]) for trial in trials if "run" in trial.user_attrs
        ]

    @property
    def best(self) -> Run:
        """The most accurate complete run. Raises ValueError if no trial is complete."""
        complete = [run for run in self.runs if run.status == "ok"]
        if not complete:
            raise ValueError(f"{self.name} has no complete trial. Call search again with more.")
        return max(complete, key=lambda run: run.record.val_top1)

    def table(self) -> pd.DataFrame:
        """Return one row for each trial (`tables.trials_table`)."""
        return trials_table(self.runs)

    def epochs(self) -> pd.DataFrame:
        """Return one row for each epoch of each trial (`tables.epochs_table`)."""
        return epochs_table(self.runs)

    def __repr__(self) -> str:
        return f"{self.name}: {len(self.runs)} trials"


def search(
    sampler: str,
    space: Space,
    config: Config,
    *,
    trials: int | None = None,
    workers: int | None = None,
    name: str = "",
    **settings: Any,
) -> Search:
    """Search for the values of a config's fields with the highest accuracy in validation.

    A second call continues the search or returns its result; it may request more trials. The first
    trial has the config's own values, if they are in the space.

    Args:
        sampler: "grid" tries all values, "random" draws them, "tpe" draws near the best trials.
        space: choices (a list) or a range (a tuple) for each field.
        trials: in total; None: all of a grid.
        workers: trials at a time: 1 on this machine; on Slurm by default a node's GPUs.
        name: by default made from the arguments.
        settings: pruner ("none", "median", "asha" or "hyperband"); script; site; seed (of the
            sampler); time_min (of each trial).

    Raises:
        ValueError: an unknown sampler, pruner, field or site, or the name of a different search.
        JobError: a different process conducts the search, or its first trials failed.
    """
    if name and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ValueError(
            f"name={name!r}: expected letters, digits, _ . and -, not beginning with . or -"
        )
    request = _request(sampler, space, config, **settings)
    count = _trial_count(trials, request)
    folder = _folder(request | {"label": name or f"{sampler}-{request['pruner']}"}, name)
    site = sites.get(request["site"])
    if site.executor != "slurm" and workers not in (None, 1):
        raise ValueError(f"workers={workers}: this machine computes one job at a time")
    with _conducting(folder):
        _run(folder, count, workers or (site.gpus_per_node if site.executor == "slurm" else 1))
    return Search(folder)


def _request(
    sampler: str,
    space: Space,
    config: Config,
    pruner: str = "none",
    script: str | Path = "solutions/train.py",
    site: str = "local",
    seed: int = 0,
    time_min: float | None = None,
) -> dict[str, Any]:
    """Return what identifies a search, as JSON."""
    from optuna.distributions import distribution_to_json

    for field, value, known in (
        ("sampler", sampler, trial_queue.SAMPLERS),
        ("pruner", pruner, PRUNERS),
    ):
        if value not in known:
            raise ValueError(f"no {field} {value!r}: choose {', '.join(known)}")
    ranges = distributions(space, config)
    if not config.val_steps:
        raise ValueError("val_steps=0: a search needs a validation after each epoch")
    if sites.get(site).executor == "recorded":
        raise ValueError(f"site {site!r} starts no jobs: recorded_runs has its searches")
    job = plan_run(script, config, site=site)
    values = {field: getattr(config, field) for field in space}
    first = [*combinations(space)] if sampler == "grid" else [values] * contains(space, values)
    request = {
        "sampler": sampler,
        "pruner": pruner,
        "seed": seed,
        "site": site,
        "time_min": time_min,
        "space": {field: distribution_to_json(values) for field, values in ranges.items()},
        "first": first,
        "config": asdict(replace(config, rung="search")),
        "script": str(job.source),
        "text": job.text,
    }
    return json.loads(json.dumps(request))


def _trial_count(trials: int | None, request: dict[str, Any]) -> int:
    grid = len(request["first"]) if request["sampler"] == "grid" else None
    count = grid if trials is None else trials
    if count is None or count < 1:
        raise ValueError(f"trials={trials}: expected 1 or more. Try trials=16.")
    return min(count, grid or count)


def _folder(request: dict[str, Any], name: str) -> Path:
    """Return the search's folder, created if it does not exist.

    Raises:
        ValueError: a different search has this name.
    """
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:8]
    folder = runs_root() / FOLDER / (name or f"{request['label']}-{digest}")
    folder.mkdir(parents=True, exist_ok=True)
    with trial_queue.locked(folder):
        if (folder / ABOUT).exists():
            known = trial_queue.read_request(folder)
            if changed := [key for key in request if request[key] != known.get(key)]:
                raise ValueError(
                    f"name={name!r}: a different search has this name ({', '.join(changed)} "
                    f"differ). Choose a different name, or none, or delete {folder}"
                )
            return folder
        (folder / trial_queue.SNAPSHOT).write_text(request["text"])
        write_atomically(folder / ABOUT, json.dumps(request, indent=1))
        study = open_study(folder)
        for values in request["first"]:
            study.enqueue_trial(values)
    return folder


@contextmanager
def _conducting(folder: Path) -> Iterator[None]:
    """Lock the search, so that no second process starts its trials."""
    try:
        with FileLock(folder / ".conductor.lock", mode=0o600, timeout=0):
            yield
    except Timeout as error:
        raise JobError(
            f"a different process conducts {folder.name}. Wait for it, or end it, then call again"
        ) from error


def _run(folder: Path, count: int, workers: int) -> None:
    """Keep up to this number of trials running until all have ended."""
    with _progress_bar(folder, count) as update:
        while True:
            running = trial_queue.finish_ended(folder, runs_root())
            update()
            while len(running) < workers:
                run = _quietly(lambda: trial_queue.take(folder, count))
                if run is None:
                    break
                running.append(run)
            if not running:
                return
            try:
                time.sleep(POLL_S)
            except KeyboardInterrupt:
                names = ", ".join(run.name for run in running)
                print(f"Stopped; {names} continue. Call search again to continue the search")
                raise


def _quietly(call: Callable[[], Any]) -> Any:
    with redirect_stdout(io.StringIO()):
        return call()


@contextmanager
def _progress_bar(folder: Path, count: int) -> Iterator[Callable[[], int]]:
    """Show a progress bar; provide a function that updates it and returns the trials left."""
    layout = "{desc} |{bar}| {n}/{total} trials, {elapsed}"
    with tqdm(total=count, file=sys.stdout, bar_format=layout, ncols=88) as bar:

        def update() -> int:
            finished, best = _finished_trials(folder)
            bar.set_description_str(f"{folder.name} [{best}]", refresh=False)
            bar.n = finished
            bar.refresh()
            return count - finished

        update()
        yield update


def _finished_trials(folder: Path) -> tuple[int, str]:
    """Return the number of finished trials and, in words, the best value.

    Raises:
        JobError: all of the first trials failed.
    """
    trials = trial_queue.started(open_study(folder).get_trials(deepcopy=False))
    finished = [trial for trial in trials if trial.state.is_finished()]
    if len(finished) >= MAX_FAILURES and all(trial.state.name == "FAIL" for trial in finished):
        names = [trial.user_attrs["run"] for trial in finished if "run" in trial.user_attrs]
        cause = Run(runs_root() / names[0]).explain() if names else "None of them began a run"
        raise JobError(f"the first {len(finished)} trials of {folder.name} failed. {cause}")
    values = [trial.value for trial in finished if trial.state.name == "COMPLETE"]
    return len(finished), f"best {max(values):.3f}" if values else "none complete"
