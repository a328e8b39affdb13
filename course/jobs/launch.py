"""Launch runs, wait for them, cancel them; each call can be repeated without harm."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from filelock import FileLock, Timeout
from tqdm import tqdm

from course.config import Config, change
from course.jobs import local, slurm
from course.jobs.batch_script import UnknownJobError
from course.jobs.plan import Plan, beside, engine, in_turns, plan_run
from course.runs import record as records
from course.runs import recordings, trust
from course.runs import run as runs
from course.runs.errors import JobError as JobError
from course.runs.files import PART_BYTES, write_atomically
from course.runs.record import write_record
from course.runs.restarts import has_checkpoints, take_over
from course.runs.run import RecordedRun, Run, record_of
from course.text import clock, wrap_text

T = TypeVar("T", bound=Run)
PATIENCE_S = 2.0  # until a progress line explains why a run waits
REUSED = ("queued", "running", "ok", "oom")  # launched again, a run in such a state is kept


class LaunchedRun(Run):
    """A run that a launch returned, with its verbs: those of several runs are functions."""

    def wait(self, *, timeout_s: float | None = None, check: bool = True) -> Self:
        """Wait until it is over, and return it; see the function `wait`."""
        return wait([self], timeout_s=timeout_s, check=check)[0]

    def cancel(self) -> Self:
        """End it if it waits or computes, and return it; see the function `cancel`."""
        return cancel([self])[0]


class RecordedLaunch(LaunchedRun, RecordedRun):
    """A recorded run that a launch returned: it is over."""


def launch(
    script: str | Path,
    config: Config,
    *,
    site: str = "local",
    gpus: int = 1,
    time_min: float | None = None,
    rerun: bool = False,
    against: Run | None = None,
    hooks: Sequence[str] = (),
    arguments: Sequence[str] | None = None,
) -> LaunchedRun:
    """Start a job that runs `script`, and return at once.

    The same script text, config, site and GPU count are the same run: a second launch returns it,
    running or over. A run that failed, timed out, was cancelled or lost is restarted, in case you
    fixed the cause; with `save_every` it resumes from its last checkpoint. A site whose name begins
    with "recorded-" starts nothing: it returns what another machine measured.

    Args:
        script: a Python file, relative to the current folder or to the project.
        gpus: number of devices, with one process each; without a GPU, of processes only.
        time_min: minutes after which the run is ended; None: the site's limit.
        rerun: start it again in any case.
        against: the run to compare with. Its snapshot runs again in the same job, and the two
            alternate, so that their ratio does not depend on what else the machine does.
        hooks: classes that are created in the training process, MODULE:CLASS
            (`course.training.hooks`).
        arguments: of the script's command line. A script with arguments, also with none, runs in
            the current folder, and may import the modules next to it. Such a module is not part of
            the run: after a change in it, launch with `rerun=True`.

    Raises:
        ValueError: no such script or site, or an impossible request.
        JobError: the runs folder cannot be written, or other people can change what would be
            executed (`course.runs.trust`).
    """
    planned = plan_run(
        script,
        config,
        site=site,
        gpus=gpus,
        time_min=time_min,
        hooks=hooks,
        arguments=arguments,
    )
    if answered := _answer(planned):
        return answered
    if against is not None and against.launched.get("site") != site:
        print(f"{against.name} ran elsewhere: it cannot be repeated on site {site!r}")
        against = None
    group = [planned] if against is None else [*beside(planned, against)]
    return _launch(group, rerun)[0]


def launch_all(
    script: str | Path, configs: Iterable[Config], *, turns: bool = False, **options: Any
) -> list[LaunchedRun]:
    """Launch each config; the further options are those of `launch`.

    Args:
        turns: run all in one job, in which they take turns, so that their ratios do not depend
            on what else the machine does. They share its limit `time_min`; `against` is refused.
    """
    configs = list(configs)
    if not turns or len(configs) < 2:
        return [launch(script, config, **options) for config in configs]
    rerun = options.pop("rerun", False)
    plans = [plan_run(script, config, **options) for config in configs]
    answers = [_answer(planned) for planned in plans]
    return answers if all(answers) else _launch(in_turns(plans), rerun)


def launch_planned(planned: Plan) -> LaunchedRun:
    """Launch a plan on a site that runs jobs."""
    return _launch([planned], rerun=False)[0]


def resume(
    run: Run,
    changes: dict[str, Any] | None = None,
    *,
    site: str | None = None,
    gpus: int | None = None,
    time_min: float | None = None,
) -> LaunchedRun:
    """Continue a run from its newest checkpoint, with its own copy of the script.

    Args:
        changes: of settings. The script refuses those that the checkpoint does not allow.
        site, gpus: None: those of the run. With other ones, a new run continues it.
        time_min: as for `launch`.

    Raises:
        ValueError: the run is not over, is complete, or has no checkpoint.
    """
    config, status = change(run.requested_config, changes or {}), refresh(run)
    if run.is_recorded or run.is_command or not has_checkpoints(run.folder):
        fix = "launch it with save_every=100, for example"
        raise ValueError(f"{run.name} has no checkpoint to continue from: {fix}")
    if status in ("queued", "running"):
        raise ValueError(f"{run.name} is {status}: cancel it first, or wait until it is over")
    if not config.save_every:
        raise ValueError(
            f"save_every=0: {run.name} would begin again at step 0. Set save_every=1 or more"
        )
    if status == "ok" and config == run.requested_config:
        raise ValueError(f"{run.name} is complete: to train longer, set epochs to a higher number")
    planned = plan_run(
        run.script,
        config,
        site=site or run.launched["site"],
        gpus=run.gpus if gpus is None else gpus,
        time_min=time_min,
        hooks=run.launched.get("hooks", []),
    )
    if planned.site.executor == "recorded":
        raise ValueError(f"site {site!r} starts no jobs: choose another one, as local or slurm")
    planned = replace(planned, source=Path(run.launched["script"]))
    return _launch([planned], rerun=False, resumed=run)[0]


def _answer(planned: Plan) -> RecordedLaunch | None:
    """Return and print the recorded run if the site has recordings; None on other sites."""
    if planned.site.executor != "recorded":
        return None
    machine, request = planned.site.name.removeprefix(recordings.SITE), planned.request
    answer = recordings.answer(machine, planned.config, request["gpus"], request.get("added"))
    run = RecordedLaunch(answer.folder)
    print(f"{run.name} [{run.status}]: {run.record.machine}")
    if not planned.request.get("added") and planned.source.name != run.script.name:
        print(f"It is a run of solutions/{run.script.name}, because no other script was recorded")
    return run


@contextmanager
def launching() -> Iterator[Path]:
    """Lock the runs folder for a launch, and yield it: two runs must not get the same name.

    Raises:
        JobError: it cannot be written.
    """
    root = runs.runs_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / ".launch.lock", mode=0o600, timeout=60):
            yield root
    except Timeout as error:
        raise JobError("another launch still waits for the scheduler: try again") from error
    except OSError as error:
        raise JobError(
            f"cannot write a run in {root}: {error.strerror or error}. Nothing was launched. "
            f"Make room there, or set COURSE_RUNS to a folder that you may write"
        ) from error


def _launch(group: Sequence[Plan], rerun: bool, resumed: Run | None = None) -> list[LaunchedRun]:
    """Find or start the runs of one job; the first one may continue a different run."""
    launched = [planned for planned in group if not planned.is_repeat]
    with launching():
        attempts = [planned.attempts() for planned in launched]
        known = [last for last, _ in attempts]
        if not rerun and all(last and refresh(last) in REUSED for last in known):
            for last in known:
                print(
                    f"{last}: launched before, nothing started (rerun=True, or --rerun, repeats it)"
                )
            return [LaunchedRun(last.folder) for last in known]
        folders = [folder for _, folder in attempts]
        earlier = {} if rerun else {folder: last for last, folder in attempts if last}
        if resumed and not any(last and has_checkpoints(last.folder) for last in known):
            earlier[folders[0]] = resumed
        repeats = [planned.name for planned in group if planned.is_repeat]
        folders += [folders[0] / runs.BESIDE / name for name in repeats]
        return _start(folders, group, earlier)[: len(launched)]


def wait(runs: Iterable[T], *, timeout_s: float | None = None, check: bool = True) -> list[T]:
    """Wait until runs are over, show their steps as progress, and return them.

    Interrupting the wait leaves the runs alone.

    Args:
        timeout_s: when to stop waiting; the runs go on.
        check: raise unless every run ended with status `ok`.

    Raises:
        JobError: a run did not end ok (with the end of its log), or is not over yet.
    """
    runs, began = list(runs), time.time()
    deadline = time.monotonic() + timeout_s if timeout_s is not None else None
    try:
        for run in runs:
            _follow(run, deadline, began)
            for repeat in run.repeats:  # it ends with the run, or moments later
                _follow(repeat, deadline, began, quiet=True)
    except KeyboardInterrupt:
        print(
            "Stopped waiting; the job goes on. run.wait() follows it again, run.cancel() ends it; "
            "in a terminal: course runs, course cancel NAME"
        )
        return runs
    for run in runs if check else ():
        if (status := refresh(run)) != "ok":
            no_record = f"{run.name}: {status}, and {run.folder} cannot take its record. Make room"
            raise JobError(run.explain() if run.record else no_record)
    return runs


def cancel(runs: Sequence[T]) -> list[T]:
    """End runs that wait or compute, together: none starts because another made room.

    Raises:
        JobError: Slurm does not take the requests now; or as `refresh`.
    """
    active = [member for run in runs for member in (run, *run.repeats)]  # no other run needs them
    active = [run for run in active if run.is_mine and refresh(run) in ("queued", "running")]
    for run in active:
        remaining = [member for member in run.together if member not in active]
        # A job goes on for other members of a group: its supervisor ends only this run.
        is_last = all(member.record for member in remaining)
        if run.executor == "slurm" and is_last:
            try:
                slurm.cancel(run)
            except TimeoutError as error:
                raise JobError(f"{run.name} is not cancelled: {error}") from error
    for run in active:  # processes that still run see the verdict and stop
        values = {"status": "cancelled", "error": "cancelled on request"}
        write_record(run.folder, record_of(run, values))
    local.end_processes([run for run in active if run.executor == "local"])
    return list(runs)


def refresh(run: Run) -> str:
    """Return the run's status; record how it ended if its job is gone without a record.

    Raises:
        JobError: it is not over, and others can exchange its folder.
    """
    if run.record is None and run.is_mine and not engine(run).is_alive(run) and run.record is None:
        status, error = engine(run).ending(run)
        if status in ("queued", "running"):  # it was requeued, or its end is not known yet
            return status
        values = {"status": status, "error": error}
        try:
            write_record(run.folder, record_of(run, values))
        except OSError as problem:
            print(f"{run.name} is lost, and no record could be written: {problem}", file=sys.stderr)
            return "lost"
    status = run.status
    if status == "running" and _queue_state(run).get("state") == "pending":
        return "queued"  # it was requeued, and waits to restart
    return status


def _queue_state(run: Run) -> dict[str, Any]:
    return engine(run).queue_states([run]).get(run.name, {})


def _start(
    folders: Sequence[Path], group: Sequence[Plan], earlier: dict[Path, Run]
) -> list[LaunchedRun]:
    """Start one job for all these runs; its logs are in the first one's folder.

    Args:
        earlier: by folder, an attempt at the same run that did not end ok.
    """
    started, site = [LaunchedRun(folder) for folder in folders], group[0].site
    common = {
        "time_min": site.time_min,
        "git_sha": runs.git_sha(),
        "executor": site.executor,
        "launched_at": datetime.now().isoformat(timespec="seconds"),
        **_trusted(group, earlier.values()),
    }
    try:
        for run, planned in zip(started, group):
            _write_folder(run, planned, common | _group_folders(run, started))
            if run.folder in earlier:
                take_over(earlier[run.folder].folder, run.folder)
        most = {"gpus": max(planned.request["gpus"] for planned in group)}
        job = engine(started[0]).submit(folders[0], started[0].launched | most, site)
        for run in started:
            write_atomically(run.folder / runs.JOB_FILE, json.dumps(job, indent=1))
    except UnknownJobError as error:  # the job may have begun, and write into its folder
        for run in started:
            write_record(run.folder, record_of(run, {"status": "cancelled", "error": str(error)}))
        raise
    except BaseException as error:
        if site.executor == "slurm" and not isinstance(error, ValueError):  # not refused by Slurm
            with suppress(TimeoutError):
                slurm.cancel(started[0])
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    names = ", ".join(run.name for run in started if not run.is_repeat)
    turns = ", in turns" if len(started) > 1 else ""
    is_long = any(planned.config.steps == 0 for planned in group)  # of complete epochs
    limit = f", which ends after {clock(site.time_min * 60)} (--time-min)" * is_long
    print(wrap_text(f"{names}: launched on {site.name} as job {job['job_id']}{turns}{limit}"))
    return started


def _trusted(group: Sequence[Plan], earlier: Iterable[Run]) -> dict[str, Any]:
    """Check who can change what the runs execute; return what the user accepts, for the record."""
    sources = [planned.source for planned in group if not planned.is_repeat]
    custom = [planned for planned in group if "arguments" in planned.request]
    # PyTorch's compiler starts `python -c`, which imports from where the script runs.
    imported = [folder for x in custom for folder in (x.source.parent, Path(x.request["folder"]))]
    if gone := [folder for folder in imported if not folder.is_dir()]:  # or others create it now
        raise ValueError(f"{gone[0]}: gone, and the run to repeat imports from it: launch it again")
    accepted = trust.check(sources, [*imported, *(run.folder for run in earlier)])
    return {"trusted": accepted} if accepted else {}


def _group_folders(run: Run, group: Sequence[Run]) -> dict[str, Any]:
    """Return the folders of a group's runs, relative to one of them; repetitions come first."""
    if len(group) == 1:
        return {}
    ordered = sorted(group, key=lambda member: not member.is_repeat)
    paths = [os.path.relpath(member.folder, run.folder) for member in ordered]
    return {"together": paths, "job_folder": os.path.relpath(group[0].folder, run.folder)}


def _write_folder(run: Run, planned: Plan, common: dict[str, Any]) -> None:
    run.folder.mkdir(parents=True)
    run.script.write_text(planned.text, encoding="utf-8")
    (run.folder / "config.json").write_text(planned.config.to_json())
    write_atomically(run.folder / runs.OBJECT_KEY, secrets.token_hex(32), mode=0o600)
    (run.folder / records.RESERVE).write_bytes(bytes(records.RESERVE_BYTES))
    request = planned.request | {"script": str(planned.source)} | common
    write_atomically(run.folder / "launch.json", json.dumps(request, indent=1))


def _follow(run: Run, deadline: float | None, began: float, *, quiet: bool = False) -> None:
    total = run.total_steps
    has_steps = run.reports_steps
    layout = "{desc} |{bar}| {n:,}/{total:,} steps, {elapsed}" if has_steps else "{desc} {elapsed}"
    with tqdm(total=total, file=sys.stdout, bar_format=layout, ncols=79, disable=quiet) as bar:
        bar.start_t, shown = began, None  # several are waited for at once, one is shown at a time
        explained = ""
        while True:
            status, steps = refresh(run), steps_done(run)
            state = _state(run, status, steps) if has_steps else status
            progress = steps if has_steps else int(time.time() - began)
            total = bar.total = total or run.total_steps
            if shown != (shown := (state, progress)):
                bar.set_description_str(f"{run.name} [{state}]", refresh=False)
                bar.n = min(steps, total)
                bar.refresh()
            is_late = not quiet and time.time() > began + PATIENCE_S
            if is_late and (reason := why_queued(run, status)) not in ("", explained):
                bar.write(f"{run.name} waits: {reason}", file=sys.stdout)
                explained = reason
            if status not in ("queued", "running"):
                bar.total = bar.n if status == "ok" else total  # a ratio may be certain sooner
                bar.refresh()
                return
            if deadline is not None and time.monotonic() > deadline:
                raise JobError(f"{run.name} is still {status}; it goes on: run.wait() follows it")
            time.sleep(0.3)


def why_queued(run: Run, status: str) -> str:
    """Return why a run with this status has not begun; "" if it has, or is about to."""
    state = _queue_state(run) if status == "queued" else {}
    return state["reason"] if state.get("state") == "pending" else ""


def _state(run: Run, status: str, steps: int) -> str:
    """Return the words in brackets in a progress line."""
    if status == "running" and run.is_waiting_for_turn:
        return "running, waiting for its turn"
    return "running, importing" if (status, steps) == ("running", 0) else status


def steps_done(run: Run) -> int:
    """Return how many training steps the run has completed."""
    path = run.folder / "steps.jsonl"
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - PART_BYTES))
        lines = file.read().rpartition(b"\n")[0].splitlines()
    for line in reversed(lines):
        with suppress(ValueError):  # incomplete: the disk was full
            return json.loads(line)["step"] + 1
    return 0
