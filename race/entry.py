"""An entry: a script, run several times with seeds that nobody knew, and judged."""

from __future__ import annotations

import ast
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from course.config import Config
from course.data import crop_set
from course.jobs.launch import launch_planned, wait
from course.jobs.plan import Plan, find_script, plan
from course.runs.files import read_dict, write_atomically
from course.runs.record import Record
from course.runs.run import PROJECT, RACE_CLOCK, Run, git_sha
from race import board, tracks
from race.board import SHIPPED_ENTRIES, VERDICT, Entry, Trial
from race.tracks import Track

LONG_S = 100  # a budget
JUDGED_TIMES = 5.0  # a run's budget, for the referee: it may have but a processor
CLOCK_S = 0.25  # a script's clock may be behind its supervisor's by this much
PATIENCE_S = 60.0  # until another node's files are here
SLACK_MIN = 2.0  # for a run to import its libraries, before its clock begins
SHIPPED = PROJECT / "solutions" / "race"


def settings_of(text: str, track: str) -> dict[str, Any]:
    """What a script's SETTINGS have for a track, or all of them where they name no track.

    They are read, not run: a literal dictionary at the top level.

    Raises:
        ValueError: there are none, or they are no literal.
    """
    for node in ast.parse(text).body:
        names = [each.id for each in getattr(node, "targets", []) if isinstance(each, ast.Name)]
        if "SETTINGS" in names:
            try:
                found = ast.literal_eval(node.value)
            except ValueError as error:
                raise ValueError(
                    "SETTINGS must be a plain dictionary, without computing"
                ) from error
            if set(found) & set(tracks.TRACKS):
                if track not in found:
                    raise ValueError(f"SETTINGS has {', '.join(found)}, and no {track!r}")
                return found[track]
            return found
    raise ValueError('the script needs SETTINGS = {"cpu": {"epochs": 2, …}} at its top level')


def shipped(name: str) -> Path:
    """The script of an entry that the course ships. Raises ValueError with their names."""
    if name not in SHIPPED_ENTRIES:
        raise ValueError(f"the course ships no entry {name!r}: choose {', '.join(SHIPPED_ENTRIES)}")
    return SHIPPED / f"{name}.py"


def _source(script: str | Path) -> Path:
    return shipped(str(script)) if str(script) in SHIPPED_ENTRIES else find_script(script)


def draft(script: str | Path, *, of: str = "plain") -> None:
    """Copy a shipped entry to where you edit it; a file that is there stays as it is."""
    place = PROJECT / script  # which an absolute path replaces
    if place.exists():
        print(f"{script} is there, and stays as it is")
        return
    place.write_text(shipped(of).read_text())
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

    Its text is stored first; only then are the seeds drawn. Runs go one after another, and the
    first that fails ends the entry, with its reason. An interrupted one stays, and says so.

    Args:
        script: a file, or the name of an entry that the course ships.
        name: what the board shows; without: the script's.
        seeds: runs; None: as many as the track asks for at least.
        to: the board's folder; None: `board.folder()`.
        by: who enters it; without: the user's name.

    Raises:
        ValueError: no such track or script, too few seeds, settings that the race decides.
    """
    source = _source(script)
    text, name = source.read_text(), name or source.stem
    asked = _asked(tracks.get(track), name, text, seeds, gpus)
    entry = Entry.new(track, name, by, text, asked, gpus)
    draft = board.begin(board.folder(to), entry, text)
    drawn = [secrets.randbelow(2**31) for _ in range(seeds or tracks.get(track).seeds)]
    try:
        return board.post(draft, run_all(text, entry, drawn, site))
    except KeyboardInterrupt:  # or one could enter until one is lucky
        board.post(draft, _interrupted(entry, drawn))
        raise
    except BaseException:
        board.drop(draft)
        raise


def _interrupted(entry: Entry, seeds: Sequence[int]) -> Entry:
    why = Trial(seeds[0], "", failure="interrupted by whoever entered it")
    return replace(entry, seeds=tuple(seeds), git_sha=git_sha(), trials=(why,))


def _asked(track: Track, name: str, text: str, seeds: int | None, gpus: int) -> dict[str, Any]:
    """The settings of an entry. Raises ValueError for what is wrong, before anything is stored."""
    if seeds and seeds < track.seeds:
        raise ValueError(f"seeds={seeds}: track {track.name} asks for {track.seeds} or more")
    if gpus > track.most_gpus:
        raise ValueError(f"gpus={gpus}: track {track.name} takes {track.most_gpus} at most")
    settings = settings_of(text, track.name)
    track.config(settings, name, seed=0)
    return settings


def run_all(script: str, entry: Entry, seeds: Sequence[int], site: str = "local") -> Entry:
    """Run an entry's script with these seeds, until a run fails: the entry with its results.

    Args:
        script: its text, since others can change a file on the board.
    """
    with TemporaryDirectory(prefix="race-") as folder:
        copy = Path(folder) / board.SCRIPT
        copy.write_text(script)
        return _run_each(copy, entry, seeds, site)


def _run_each(script: Path, entry: Entry, seeds: Sequence[int], site: str) -> Entry:
    entry = replace(entry, seeds=tuple(seeds), git_sha=git_sha())
    # The first is judged by itself, where the others would take long for nothing.
    alone = 1 if tracks.get(entry.track).budget_s > LONG_S else 0
    for some in filter(None, (seeds[:alone], seeds[alone:])):
        made = []
        for seed in some:
            made.append(_run(script, entry, seed, site))
            if made[-1].record.status != "ok":
                break
        entry = _with(entry, made)
        if entry.failure:
            break
    return entry


def _run(script: Path, entry: Entry, seed: int, site: str) -> Run:
    track = tracks.get(entry.track)
    config = track.config(entry.settings, entry.name, seed)
    with _blind():
        run = launch_planned(_planned(script, config, entry, track, site))
    wait(run, check=False)
    deadline = time.monotonic() + PATIENCE_S
    while run.record.status == "ok" and not (run.folder / RACE_CLOCK).exists():
        if time.monotonic() > deadline:
            break  # which `_trial` reports
        time.sleep(0.05)
    return run


def _planned(script: Path, config: Config, entry: Entry, track: Track, site: str) -> Plan:
    minutes = track.budget_s / 60 + SLACK_MIN
    asked = plan(script, config, site=site, gpus=entry.gpus, time_min=minutes)
    return replace(asked, request=asked.request | {"race": {"track": track.name}})


@contextmanager
def _blind() -> Iterator[None]:
    """Jobs that are launched meanwhile find the training crops, and no others."""
    before, blind = os.environ.get("COURSE_DATA"), str(crop_set.ensure_blind())
    os.environ["COURSE_DATA"] = blind
    try:
        yield
    finally:
        os.environ.pop("COURSE_DATA")
        if before is not None:
            os.environ["COURSE_DATA"] = before


def _with(entry: Entry, runs: Sequence[Run]) -> Entry:
    """The entry with what the referee says of these runs, too."""
    well = [str(run.folder) for run in runs if run.record.status == "ok"]
    if well:
        _ask_referee(well, tracks.get(entry.track))
    trials = [_trial(run, tracks.get(entry.track)) for run in runs]
    record = runs[0].record
    about = {"machine": _machine(record), "hardware": record.hardware, "versions": record.versions}
    return replace(entry, trials=(*entry.trials, *trials), **(about if not entry.machine else {}))


def _ask_referee(folders: Sequence[str], track: Track) -> None:
    """In a process of its own; a processor's entries leave the GPU to those that race on it.

    Where it is killed (a network that no memory holds) or does not end, the entry is refused.
    """
    own = {"CUDA_VISIBLE_DEVICES": ""} if track.device == "cpu" else {}
    limit_s = JUDGED_TIMES * track.budget_s * len(folders)
    try:
        _judge_in_fork(folders, os.environ | own, limit_s)
        if not (left := _unjudged(folders)):
            return
        done = subprocess.run(_referee(left), env=os.environ | own, timeout=limit_s)
        if done.returncode > 0:  # nothing that the entry did
            done.check_returncode()
        why = f"the referee was ended by signal {-done.returncode} over it"
    except subprocess.TimeoutExpired:
        why = f"judging took longer than {limit_s:g} s"
    for place in _unjudged(folders):
        verdict = {"refused": why, "validated_on": ""}
        write_atomically(Path(place) / VERDICT, json.dumps(verdict))


def _judge_in_fork(folders: Sequence[str], env: dict[str, str], limit_s: float) -> None:
    """By a fork, where a server has PyTorch already. How it ends nobody tells: whom it leaves
    without a verdict is judged by a new process.

    Raises:
        subprocess.TimeoutExpired: it does not end.
    """
    from course.jobs.warm import kernels

    if process := kernels.start(_referee(folders), Path.cwd(), env):
        try:
            process.wait(limit_s)
        finally:
            process.kill()


def _referee(folders: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "race.referee", *folders]


def _unjudged(folders: Sequence[str]) -> list[str]:
    return [each for each in folders if not (Path(each) / VERDICT).exists()]


def _machine(record: Record) -> str:
    """Its name; with the cores that the run had, and how many there are, if these were not all.

    They count beside a GPU as well, which may wait for the host.
    """
    own, whole = record.hardware.get("cores"), os.cpu_count()
    if record.site != "local" or not own or own >= (whole or 0):
        return record.machine
    if record.device == "cpu":
        return record.machine.replace(f"{own} cores", f"{own} of {whole} cores")
    return f"{record.machine}, {own} of {whole} cores"


def _trial(run: Run, track: Track) -> Trial:
    record, race = run.record, run.record.race
    trial = Trial(run.config.seed, run.name)
    if record.status == "timeout":
        return replace(trial, failure=f"took longer than the budget of {track.budget_s:g} s")
    if record.status != "ok":
        return replace(trial, failure=f"{record.status}: {record.error}"[:500])
    verdict = json.loads((run.folder / VERDICT).read_text())
    trial = replace(trial, validated_on=verdict["validated_on"])
    if "refused" in verdict:
        return replace(trial, failure=verdict["refused"])
    if why := _wrong_time(run):
        return replace(trial, failure=why)
    if race["seconds"] > track.budget_s:
        why = f"took {race['seconds']:.1f} s, and the budget is {track.budget_s:g} s"
        return replace(trial, failure=why)
    return replace(
        trial,
        top1=verdict["top1"],
        weights=verdict["weights"],
        seconds=race["seconds"],
        ready_s=race.get("ready_s"),
        joules=_joules(run),
        way=_way(race, verdict),
    )


def _wrong_time(run: Run) -> str:
    """Why a run's own time is not to be believed; "": its supervisor counted no more."""
    own, seen = run.record.race.get("seconds"), read_dict(run.folder / RACE_CLOCK).get("seconds")
    if not isinstance(own, int | float) or seen is None:
        return "it has no time, or its supervisor could not take one: call recording() once"
    if own >= seen - CLOCK_S:
        return ""
    return (
        f"its own clock counted {own:.2f} s, and the supervisor's {seen:.2f} s, from the beginning "
        f"of recording() to the last weights: a script must leave the clock alone"
    )


def _joules(run: Run) -> float | None:
    """Of all its GPUs together; None if one of them counts none."""
    each = [rank.get("race", {}).get("joules") for rank in run.ranks] or [run.record.race["joules"]]
    return None if None in each else sum(each)


def _way(race: dict[str, Any], verdict: dict[str, Any]) -> tuple[tuple[float, float, float], ...]:
    """Seconds, joules and accuracy on the way, and at the end."""
    marks = [*race["on_the_way"], race]
    values = [*verdict["on_the_way"], verdict["top1"]]
    return tuple((mark["seconds"], mark["joules"], top1) for mark, top1 in zip(marks, values))
