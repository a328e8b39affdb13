"""Enter the race: store a script, draw secret seeds, run it with each, and have it judged."""

from __future__ import annotations

import ast
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from course import Run
from course.data import crop_set
from course.jobs import find_script, launch_planned, plan_run
from course.lab import read_utf8
from course.runs import PROJECT, Record, git_sha, read_dict, trust, write_atomically
from race import board
from race.board import COURSE_ENTRIES
from race.entries import MOST_SEEDS, VERDICT, Entry, Trial
from race.supervised_clock import RESULT
from race.tracks import TRACKS, Track, find_track

LONG_BUDGET_S = 100  # with a longer budget, the first run is judged before the others start
REFEREE_LIMIT = 5.0  # budgets per run: the referee may have only a CPU
CLOCK_TOLERANCE_S = 0.25  # how far a script's clock may be behind its supervisor's
SYNC_TIMEOUT_S = 60.0  # until files of a different node are visible here
REQUEST = {  # of a racing run, in its launch.json
    "hooks": ["race.clock:Clock"],
    "observers": ["race.supervised_clock:SupervisedClock"],
    "reports_steps": False,  # its loop is its own
}
STARTUP_MIN = 2.0  # for a run to import its libraries, before its clock starts


def read_settings(script: str, track: str) -> dict[str, Any]:
    """Return a script's SETTINGS for a track, or all of them if they name no track.

    They are read, not run, so they must be a literal dictionary at the top level.
    """
    for node in ast.parse(script).body:
        names = [target.id for target in getattr(node, "targets", []) if hasattr(target, "id")]
        if "SETTINGS" not in names:
            continue
        try:
            settings = ast.literal_eval(node.value)
        except ValueError as error:
            raise ValueError("SETTINGS must be a literal dictionary, without calls") from error
        if not set(settings) & set(TRACKS):
            return settings
        if track not in settings:
            raise ValueError(f"SETTINGS has {', '.join(settings)}, and no {track!r}")
        return settings[track]
    raise ValueError('the script needs SETTINGS = {"cpu": {"epochs": 2, …}} at its top level')


def course_script(name: str) -> Path:
    """Return the script of an entry that comes with the course."""
    if name not in COURSE_ENTRIES:
        raise ValueError(f"the course has no entry {name!r}: choose {', '.join(COURSE_ENTRIES)}")
    return PROJECT / "solutions" / "race" / f"{name}.py"


def draft(script: str | Path, *, of: str = "plain") -> None:
    """Copy an entry of the course to a file that you edit; an existing file stays unchanged."""
    target = PROJECT / script  # an absolute path replaces the project's
    if target.exists():
        print(f"{script} exists, and stays as it is")
        return
    target.write_text(course_script(of).read_text())
    print(f"{script}: a copy of {of}. Open it, and change SETTINGS, or anything else")


def enter(
    track: str,
    script: str | Path,
    *,
    name: str = "",
    seeds: int | None = None,
    gpus: int = 1,
    site: str = "local",
    to: str | Path | None = None,
    by: str = "",
) -> Entry:
    """Run a script for the race, have the referee judge it, and put it on the board.

    The script is stored first, and the seeds are drawn afterwards. Runs are launched one after
    another, and the first failure ends the entry. An interrupted entry stays on the board.

    Args:
        script: a file, or the name of an entry that comes with the course.
        name: the name on the board; by default the script's.
        seeds: number of runs; by default the track's minimum.
        to: the board's folder; by default `board.board_folder()`.
        by: the author; by default the user's name.

    Raises:
        ValueError: no such track or script, too few seeds, or settings that the race decides.
    """
    is_course_entry = str(script) in COURSE_ENTRIES
    source = course_script(str(script)) if is_course_entry else find_script(script)
    trust.check([source])  # what runs is a copy
    text, name = read_utf8(source), name or source.stem
    rules = find_track(track)
    if seeds and not rules.seeds <= seeds <= MOST_SEEDS:
        raise ValueError(f"seeds={seeds}: track {track} needs {rules.seeds} to {MOST_SEEDS}")
    if gpus > rules.max_gpus:
        raise ValueError(f"gpus={gpus}: track {track} allows at most {rules.max_gpus}")
    settings = read_settings(text, track)
    rules.config(settings, name, seed=0)  # raises for a wrong setting
    entry = Entry.new(track, name, by, text, settings, gpus)
    draft = board.begin(board.board_folder(to), track, text)
    drawn = draw_seeds(seeds or rules.seeds)
    try:
        return board.post(draft, run_all(text, entry, drawn, site))
    except KeyboardInterrupt:  # it counts as a failure, or one could enter until one is lucky
        trial = Trial(drawn[0], "", failure="interrupted by its author")
        board.post(draft, replace(entry, seeds=drawn, git_sha=git_sha(), trials=(trial,)))
        raise
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def draw_seeds(count: int) -> tuple[int, ...]:
    """Draw random seeds."""
    return tuple(secrets.randbelow(2**31) for _ in range(count))


def run_all(script: str, entry: Entry, seeds: Sequence[int], site: str = "local") -> Entry:
    """Run an entry's script with each seed until one fails; return the entry with the results.

    Args:
        script: its text, because others can change a file on the board.
    """
    track = find_track(entry.track)
    entry = replace(entry, seeds=tuple(seeds), git_sha=git_sha())
    first = 1 if track.budget_s > LONG_BUDGET_S else 0
    with TemporaryDirectory(prefix="race-") as folder:
        copy = Path(folder) / board.SCRIPT
        copy.write_text(script)
        for batch in filter(None, (seeds[:first], seeds[first:])):
            runs = []
            for seed in batch:
                runs.append(_run(copy, entry, seed, site))
                if runs[-1].record.status != "ok":
                    break
            entry = _with_results(entry, runs)
            if entry.failure:
                break
    return entry


def _run(script: Path, entry: Entry, seed: int, site: str) -> Run:
    track = find_track(entry.track)
    config = track.config(entry.settings, entry.name, seed)
    minutes = track.budget_s / 60 + STARTUP_MIN
    with hidden_validation_crops():
        planned = plan_run(script, config, site=site, gpus=entry.gpus, time_min=minutes)
        run = launch_planned(replace(planned, request=planned.request | REQUEST))
    run.wait(check=False)
    if not run.record:
        run.cancel()
        raise KeyboardInterrupt  # which ended the wait
    deadline = time.monotonic() + SYNC_TIMEOUT_S
    path = run.folder / RESULT  # `_trial` reports it if it is missing
    while run.record.status == "ok" and not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return run


@contextmanager
def hidden_validation_crops() -> Iterator[None]:
    """Hide the validation crops from jobs that are launched in this context."""
    before, folder = os.environ.get("COURSE_DATA"), str(crop_set.ensure_blind())
    os.environ["COURSE_DATA"] = folder
    try:
        yield
    finally:
        os.environ.pop("COURSE_DATA")
        if before is not None:
            os.environ["COURSE_DATA"] = before


def _with_results(entry: Entry, runs: Sequence[Run]) -> Entry:
    """Judge runs, and add them to the entry."""
    track = find_track(entry.track)
    if folders := [run.folder for run in runs if run.record.status == "ok"]:
        judge(folders, track)
    trials = [_trial(run, track) for run in runs]
    record = runs[0].record
    if not entry.machine:
        columns = {"hardware": record.hardware, "versions": record.versions}
        entry = replace(entry, machine=_machine(record), **columns)
    return replace(entry, trials=(*entry.trials, *trials))


def judge(folders: Sequence[Path], track: Track) -> None:
    """Judge runs in a separate process; on a CPU's track it leaves the GPU alone.

    If the process is killed (by a network that exceeds the memory) or does not end, the runs that
    it did not judge are refused.
    """
    env = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if track.device == "cpu" else {})
    limit_s = REFEREE_LIMIT * track.budget_s * len(folders)
    command = [sys.executable, "-P", "-m", "race.referee", *map(str, folders)]
    try:
        process = subprocess.run(command, env=env, timeout=limit_s)
        if process.returncode > 0:  # not the entry's fault
            process.check_returncode()
        reason = f"it ended the referee by signal {-process.returncode}"
    except subprocess.TimeoutExpired:
        reason = f"judging it took longer than {limit_s:g} s"
    for folder in folders:
        if not (folder / VERDICT).exists():
            verdict = {"refused": reason, "validated_on": ""}
            write_atomically(folder / VERDICT, json.dumps(verdict))


def _machine(record: Record) -> str:
    """Return the machine's name, with the run's cores if they were not all.

    They matter for a GPU, too, which may wait for the host.
    """
    cores, total = record.hardware.get("cores"), os.cpu_count()
    if record.site != "local" or not cores or cores >= (total or 0):
        return record.machine
    if record.device == "cpu":
        return record.machine.replace(f"{cores} cores", f"{cores} of {total} cores")
    return f"{record.machine}, {cores} of {total} cores"


def _trial(run: Run, track: Track) -> Trial:
    record, race = run.record, _times(run.record.extra)
    trial = Trial(run.config.seed, run.name)
    if record.status == "timeout":
        return replace(trial, failure=f"took longer than the budget of {track.budget_s:g} s")
    if record.status != "ok":
        return replace(trial, failure=f"{record.status}: {record.error}"[:500])
    verdict = json.loads((run.folder / VERDICT).read_text())
    trial = replace(trial, validated_on=verdict["validated_on"])
    if failure := verdict.get("refused") or _clock_failure(run):
        return replace(trial, failure=failure)
    if race["seconds"] > track.budget_s:
        failure = f"took {race['seconds']:.1f} s, and the budget is {track.budget_s:g} s"
        return replace(trial, failure=failure)
    ranks = [_times(rank["extra"]).get("joules") for rank in run.ranks] or [race["joules"]]
    marks = zip([*race["on_the_way"], race], [*verdict["on_the_way"], verdict["top1"]])
    return replace(
        trial,
        top1=verdict["top1"],
        weights=verdict["weights"],
        seconds=race["seconds"],
        ready_s=race.get("ready_s"),
        joules=None if None in ranks else sum(ranks),
        way=tuple((mark["seconds"], mark["joules"], top1) for mark, top1 in marks),
    )


def _times(extra: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the hook has added to a record, or to a rank's report."""
    return (extra or {}).get("race", {})


def _clock_failure(run: Run) -> str:
    """Explain why a run's time is wrong; empty if its supervisor measured no more."""
    clock = read_dict(run.folder / RESULT)
    reported, measured = _times(run.record.extra).get("seconds"), clock.get("seconds")
    if not isinstance(reported, int | float) or measured is None:
        return "it has no time, or its supervisor could not measure one: call recording() once"
    if reported >= measured - CLOCK_TOLERANCE_S:
        return ""
    return (
        f"its clock counted {reported:.2f} s, and the supervisor's {measured:.2f} s, from the "
        f"start of recording() to the last weights: a script must not change the clock"
    )
