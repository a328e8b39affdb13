"""Search for hyperparameters: each trial is a run, and all that is known lies in files."""

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
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from course.config import Config
from course.jobs import sites
from course.jobs.launch import JobError, explain, launch_planned, wait
from course.jobs.plan import plan
from course.jobs.sites import Site
from course.jobs.trials import array, taking
from course.runs import run as runs
from course.runs.files import write_atomically
from course.runs.run import Run
from course.training.trials import ABOUT, FOLDER, PRUNERS, open_study
from labs.day4_4_search.space import Space, combinations, distributions, holds

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

ARRAYS = 3  # that may end without an end of any trial: workers may be lost, but not for ever
HOPELESS = 3  # so many trials that fail at the beginning are enough
LOOK_S = 1.0  # between two looks at what workers have done


@dataclass(frozen=True, repr=False)
class Search:
    """A search, as its folder tells it: any process may look."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def runs(self) -> list[Run]:
        """A run for each trial, in their order."""
        root = self.folder.parent.parent
        numbers = {}
        for trial in open_study(self.folder).get_trials(deepcopy=False):
            if name := trial.user_attrs.get("run"):
                numbers[trial.number] = Run(root / name)
        return [numbers[number] for number in sorted(numbers)]

    @property
    def best(self) -> Run:
        """The run that ended best. Raises ValueError: none has ended well."""
        done = [run for run in self.runs if run.status == "ok"]
        if not done:
            raise ValueError(f"no trial of {self.name} has ended well")
        return max(done, key=lambda run: run.record.val_top1)

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
    **how: Any,
) -> Search:
    """Try values of some fields of a config, for the largest accuracy in validation.

    Called again it goes on where it was, or returns what is there; more trials may be asked for.
    The first trial has the config's own values, if they are in the space.

    Args:
        sampler: "grid" tries all, "random" draws, "tpe" draws where the best trials were.
        space: of each field its choices, a list, or its range, a tuple.
        trials: in all; None: all of a grid.
        workers: jobs at a time: 1 on this machine; on Slurm a node's GPUs, unless told.
        name: of the search; by default it is made of what is asked.
        how: pruner, "none", "median" or "hyperband"; script; site; seed, of what is drawn;
            time_min, of each trial: on Slurm a job asks for that of its share of them.

    Raises:
        ValueError: no such sampler, pruner, field or site; or no name, or another search's.
        JobError: another process conducts it, or its workers or first trials have failed.
    """
    _check_name(name)
    asked = _asked(sampler, space, config, **how)
    asked["label"] = name or f"{sampler}-{asked['pruner']}"
    most, folder = _count(trials, asked), _folder(asked, name)
    with _conducting(folder):
        _until(folder, most, workers, sites.get(asked["site"]))
    return Search(folder)


def _until(folder: Path, most: int, workers: int | None, place: Site) -> None:
    if place.executor == "slurm":
        _on_slurm(folder, most, min(workers or place.gpus_per_node, most))
    else:
        _here(folder, most, workers or 1)


def _asked(
    sampler: str,
    space: Space,
    config: Config,
    pruner: str = "none",
    script: str | Path = "solutions/train.py",
    site: str = "local",
    seed: int = 0,
    time_min: float | None = None,
) -> dict[str, Any]:
    """What makes a search the same as another, as JSON."""
    from optuna.distributions import distribution_to_json

    _choose("sampler", sampler, taking.SAMPLERS)
    _choose("pruner", pruner, PRUNERS)
    found = distributions(space, config)
    if not config.val_steps:
        raise ValueError("val_steps=0: a search needs a validation after each epoch")
    if sites.get(site).executor == "recorded":
        raise ValueError(f"site {site!r} starts no jobs: recorded_runs has what was searched there")
    made, own = plan(script, config, site=site), {field: getattr(config, field) for field in space}
    first = [*combinations(space)] if sampler == "grid" else [own] * holds(space, own)
    asked = {
        "sampler": sampler,
        "pruner": pruner,
        "seed": seed,
        "site": site,
        "time_min": time_min,
        "space": {field: distribution_to_json(each) for field, each in found.items()},
        "first": first,
        "config": asdict(replace(config, rung="search")),
        "script": str(made.source),
        "text": made.text,
    }
    return json.loads(json.dumps(asked))


def _check_name(name: str) -> None:
    """A search's name is that of its folder, of its Slurm jobs, and a part of its trials' names."""
    if name and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ValueError(
            f"name={name!r}: take letters, digits, _ . and -, of which . and - do not come first"
        )


def _choose(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(f"no {what} {given!r}: choose {', '.join(known)}")


def _count(trials: int | None, asked: dict[str, Any]) -> int:
    grid = len(asked["first"]) if asked["sampler"] == "grid" else None
    if trials is None and grid is None:
        raise ValueError(f"{asked['sampler']!r} has no end: say how many trials=… there may be")
    most = grid if trials is None else trials
    if most < 1:
        raise ValueError(f"trials={trials}: there must be 1 or more")
    return min(most, grid or most)


def _folder(asked: dict[str, Any], name: str) -> Path:
    """The study's folder, made now if there is none.

    Raises:
        ValueError: another search has this name.
    """
    known = json.dumps(asked, sort_keys=True)
    digest = hashlib.sha256(known.encode()).hexdigest()[:8]
    folder = runs.runs_root() / FOLDER / (name or f"{asked['label']}-{digest}")
    folder.mkdir(parents=True, exist_ok=True)
    with taking.locked(folder):
        if (folder / ABOUT).exists():
            _check_same(folder, asked)
            return folder
        (folder / taking.SNAPSHOT).write_text(asked["text"])
        write_atomically(folder / ABOUT, json.dumps(asked, indent=1))
        study = open_study(folder)
        for values in asked["first"]:
            study.enqueue_trial(values)
    return folder


def _check_same(folder: Path, asked: dict[str, Any]) -> None:
    there = taking.about(folder)
    if differ := [key for key in asked if asked[key] != there.get(key)]:
        raise ValueError(
            f"{folder.name!r} is another search: {', '.join(differ)} differ. Choose another name, "
            f"or none; or delete {folder}"
        )


@contextmanager
def _conducting(folder: Path) -> Iterator[None]:
    """Hold the search: two that begin its trials, or its array, would be one too many."""
    lock = FileLock(folder / ".conductor.lock", timeout=0)
    try:
        with lock:
            yield
    except Timeout as error:
        raise JobError(
            f"another process conducts {folder.name}: wait for it, or end it, and call again"
        ) from error


def _here(folder: Path, most: int, workers: int) -> None:
    if workers != 1:
        raise ValueError(f"workers={workers}: this machine computes one job at a time")
    with _bar(folder, most) as look:
        for run in taking.heal(folder, runs.runs_root()):  # of a call that was interrupted
            _await(run)
            taking.finish(folder, run)
            look()
        while run := _quietly(lambda: taking.take(folder, most, launch_planned)):
            _await(run)
            taking.finish(folder, run)
            look()


def _await(run: Run) -> None:
    """Wait for a run to its end. Raises KeyboardInterrupt, too: the search ends with the wait."""
    _quietly(lambda: wait(run, check=False))
    if run.record is None:
        print(f"Stopped; {run.name} goes on. Call search again, and it goes on from there")
        raise KeyboardInterrupt


def _on_slurm(folder: Path, most: int, workers: int) -> None:
    arrays, before, number = 0, most + 1, ""
    with _bar(folder, most) as look:
        while True:
            gone = not array.alive(folder)  # asked before, or what ended meanwhile would be missed
            under_way = taking.heal(folder, runs.runs_root())
            left = look()
            if not left:
                return
            if gone and not under_way:
                if number and array.was_cancelled(number):
                    raise JobError(f"{folder.name} was cancelled. Call search again to go on")
                if left < before:  # as where workers came to the end of their time
                    arrays, before = 0, left
                if arrays == ARRAYS:
                    raise JobError(
                        f"{ARRAYS} arrays have ended no trial, and {left} are left: what workers "
                        f"said lies in {folder / 'logs'}. Call search again to go on"
                    )
                number = array.submit(folder, most, min(workers, left))
                arrays += 1
            time.sleep(LOOK_S)


def _quietly(call: Callable[[], Any]) -> Any:
    with redirect_stdout(io.StringIO()):
        return call()


@contextmanager
def _bar(folder: Path, most: int) -> Iterator[Callable[[], int]]:
    """Show how far a search is, at each call of what this gives, which tells trials left."""
    layout = "{desc} |{bar}| {n}/{total} trials, {elapsed}"
    with tqdm(total=most, file=sys.stdout, bar_format=layout, ncols=88) as bar:

        def look() -> int:
            over, best = _over(folder)
            bar.set_description_str(f"{folder.name} [best {best:.3f}]", refresh=False)
            bar.n = len(over)
            bar.refresh()
            return most - len(over)

        look()
        yield look


def _over(folder: Path) -> tuple[list[FrozenTrial], float]:
    """Trials that are over, and the best value. Raises JobError: the first ones have all failed."""
    known = open_study(folder).get_trials(deepcopy=False)
    over = [each for each in taking.begun(known) if each.state.is_finished()]
    if len(over) >= HOPELESS and all(each.state.name == "FAIL" for each in over):
        names = [each.user_attrs["run"] for each in over if "run" in each.user_attrs]
        why = explain(Run(runs.runs_root() / names[0])) if names else "None of them has begun a run"
        raise JobError(f"the first {len(over)} trials of {folder.name} failed. {why}")
    return over, max((each.value for each in over if each.state.name == "COMPLETE"), default=0.0)
