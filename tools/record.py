"""Record a machine: run a list of configs on it, and pack the results into the course."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from course.analysis.traces import thin as trace_thin
from course.checks import discovery
from course.checks.lab import Planned
from course.config import Config
from course.jobs.launch import launch, wait
from course.runs import rows
from course.runs.files import write_atomically
from course.runs.recordings import (
    INDEX,
    LEARNING,
    LOCK,
    PURPOSES,
    SEARCH,
    SITE,
    check_purpose,
    origin,
)
from course.runs.run import TRACES, Run, all_runs, git_sha, runs_root
from labs.day4_4_search import configs as tuned

if TYPE_CHECKING:
    import pandas as pd

TRACE_BYTES = 600_000  # the largest trace that may be shipped
TIMED = re.compile(r".*(_s|_s_q\d|_gib|watts|joules_per_image)$")  # fields of a record
COURSE_STEPS = 128  # how many steps are stored of a run whose times mean nothing
TIME_MIN = 5  # for each run


def plan(only: str = "*", gpus: int = 1) -> list[Planned]:
    """What `course record` runs: the recordings of all labs, purpose by purpose, lab by lab.

    The most important come first, in the order of `PURPOSES`, because the time may run out.

    Args:
        only: a shell pattern for the configs' labels (`label`).
        gpus: how many the machine has.

    Raises:
        ValueError: no label fits; the message lists them.
    """
    known = [
        planned
        for lab in discovery.labs()
        for recording in lab.recordings
        for planned in recording.planned(gpus)
    ]
    known.sort(key=lambda planned: [*PURPOSES].index(planned.purpose))  # labs stay in their order
    if chosen := [planned for planned in known if fnmatch(label(planned.config), only)]:
        return chosen
    names = ", ".join(dict.fromkeys(label(planned.config) for planned in known))
    raise ValueError(f"no rung fits {only!r}: there are {names}")


def label(config: Config) -> str:
    """A config's rung, followed by -cpu for a rung that usually runs on a GPU."""
    is_cpu = config.device == "cpu" and config.rung != "baseline"
    return config.rung + "-cpu" * is_cpu


def record(machine: str, planned: Iterable[Planned], folder: Path) -> Path:
    """Run configs here one after another, and pack each as soon as it ends.

    Args:
        machine: the name of the recordings, such as nvidia-h100.
        planned: configs, each with its number of GPUs and its purpose.
        folder: where the machine's folder is created or extended.

    Returns:
        The machine's folder.

    Raises:
        ValueError: some runs could not be packed; all others were.
    """

    def ran() -> Iterator[tuple[Run, str]]:
        for config, gpus, purpose in planned:
            run = wait(
                launch(f"solutions/{config.script}", config, gpus=gpus, time_min=TIME_MIN),
                check=False,
            )
            print(f"{run}: {run.record.images_per_s or run.record.error}", flush=True)
            yield run, purpose

    return _pack_all(ran(), folder / machine, machine)


def pack_variants(machine: str, folder: Path) -> Path:
    """Pack the runs of scripts with added lines, which a notebook launched on this machine.

    Only notebooks contain such lines, so they must run first. The last of several equal runs is
    packed.

    Raises:
        ValueError: there is no such run, or some could not be packed; all others were.
    """
    target = folder / machine
    made = [run for run in all_runs() if "added" in run.launched]
    if not made:
        raise ValueError(f"no variant of a script has run in {runs_root()}: run a notebook first")
    last = {_asked(run): run for run in sorted(made, key=lambda run: run.launched["launched_at"])}
    return _pack_all(((run, "variant") for run in last.values()), target, machine)


def record_searches(machine: str, folder: Path, only: str = "*") -> Path:
    """Run searches on this machine, and pack each trial as soon as its search ends.

    Each network's accuracy on images that no search used is packed with it.

    Args:
        only: a shell pattern for the searches' names.

    Raises:
        ValueError: no search has such a name; the message lists them.
    """
    from labs.day4_4_search import holdout as unseen
    from labs.day4_4_search.studies import search

    chosen = [name for name in tuned.SEARCHES if fnmatch(name, only)]
    if not chosen:
        raise ValueError(f"no search fits {only!r}: there are {', '.join(tuned.SEARCHES)}")
    for name in chosen:
        found = search(**tuned.asked(name))
        for run in found.runs:
            if run.status == "ok":
                unseen.tested(run)
        _pack_all(((run, SEARCH) for run in found.runs), folder / machine, machine)
    return folder / machine


def _asked(run: Run) -> str:
    asked = [run.launched["added"], run.launched["gpus"], asdict(run.requested_config)]
    return json.dumps(asked, sort_keys=True)


def _pack_all(runs: Iterable[tuple[Run, str]], target: Path, machine: str) -> Path:
    """Pack each run with its purpose as soon as it ends; report the refused ones at the end."""
    refused = []
    for run, purpose in runs:
        try:
            pack(run, target, machine, purpose)
        except ValueError as error:
            refused.append(str(error))
    if refused:
        raise ValueError("\n".join(refused))
    return target


def pack(run: Run, target: Path, machine: str, purpose: str) -> Run:
    """Add a run to a machine's tables, without this machine's paths and with a thin trace.

    A run of the same name is replaced, with its files; all others stay as they are.

    Args:
        target: the machine's folder.
        purpose: why it was run, one of `PURPOSES`; runs are selected by it.

    Returns:
        The recorded run.

    Raises:
        ValueError: the run is not over, its thin trace is too large, or no such purpose.
    """
    check_purpose(purpose)
    if run.record is None or not run.record.machine:
        why = run.record.error if run.record else "it is not over"
        raise ValueError(f"{run} measured nothing, so there is nothing to pack: {why}")
    if len(run.together) > 1:
        raise ValueError(f"{run} took turns with others, which would be lost: record it by itself")
    target.mkdir(parents=True, exist_ok=True)
    row = {"run": run.name} | _row(run, machine, purpose)
    steps = [_columns(run.rank_steps(rank), purpose) for rank in range(run.launched["gpus"])]
    packed = Run(target / TRACES / run.name)
    with tempfile.TemporaryDirectory(dir=target) as draft:
        new, old = Path(draft, "new"), Path(draft, "old")
        new.mkdir()
        _copy_files(run, new)
        with FileLock(target / LOCK):  # two can record at once, each with a GPU of its own
            rows.write(target / rows.STEPS, {"run": run.name, "ranks": steps})
            if packed.folder.exists():
                packed.folder.replace(old)
            if any(new.iterdir()):
                packed.folder.parent.mkdir(exist_ok=True)
                new.replace(packed.folder)
            rows.write(target / rows.RUNS, row)  # last, so that what it refers to is there
            _write_index(run, target)
    return packed


def _row(run: Run, machine: str, purpose: str) -> dict[str, Any]:
    """Config, request, record, ranks and test of a run, if it has them."""
    launched = run.launched
    request = {"rung": launched["rung"], "purpose": purpose}
    request |= {key: launched[key] for key in ("gpus", "executor", "git_sha", "launched_at")}
    request |= {key: launched[key] for key in ("added", "trial") if key in launched}
    request |= {"site": SITE + machine, "script": run.source}
    record = asdict(run.record) | {"site": SITE + machine, "logs": []}
    # In the data itself, so that no table and no picture can show it unlabelled.
    record["machine"] += f" ({origin({'date': _day(run), 'versions': run.record.versions})})"
    record["error"] = record["error"].replace(str(run.folder), "RUN")
    if purpose == SEARCH:
        record |= {"evidence": {}}
    if purpose == LEARNING:
        record |= {name: None for name in record if TIMED.match(name)} | {"evidence": {}}
    config = asdict(run.requested_config)
    record["config"] = {
        name: value for name, value in run.record.config.items() if config.get(name) != value
    }
    hosts = list(dict.fromkeys(rank["host"] for rank in run.ranks))
    ranks = [  # which ranks shared a node matters, not the node's name
        rank | {"host": f"node-{hosts.index(rank['host'])}"} for rank in run.ranks
    ]
    parts = {"config": config, "request": request, "record": record}
    return parts | ({"ranks": ranks} if ranks else {}) | ({"test": run.test} if run.test else {})


def _columns(steps: pd.DataFrame, purpose: str) -> dict[str, list]:
    """The columns of a rank's steps: times to 0.1 µs and losses to 1e-6, because the rest is noise.

    If times mean nothing, only loss and learning rate, of some steps.
    """
    if purpose in (LEARNING, SEARCH) and len(steps):
        steps = steps[["step", "epoch", "loss", "lr"]].iloc[:: -(-len(steps) // COURSE_STEPS)]
        steps = steps.assign(loss=[float(f"{loss:.5g}") for loss in steps["loss"]])
    else:
        digits = {name: 7 for name in steps if name.endswith("_s")}
        steps = steps.round(digits | {"loss": 6})
    return {
        name: [None if value != value else value for value in column.tolist()]  # JSON has no NaN
        for name, column in steps.items()
    }


def _copy_files(run: Run, draft: Path) -> None:
    """Copy a run's files into a folder: its thin trace, and BatchNorm's statistics."""
    if run.record.trace:
        thin = trace_thin.thin(run.folder / run.record.trace, draft / run.record.trace)
        if (size := thin.stat().st_size) > TRACE_BYTES:
            raise ValueError(f"{run}: its trace has {size:,} bytes, more than {TRACE_BYTES:,}")
    for path in run.folder.glob("batchnorm-*.pt"):
        shutil.copy(path, draft)


def _write_index(run: Run, target: Path) -> None:
    """Write the machine's own fields of the index; measurements of other tools stay."""
    path, record = target / INDEX, run.record
    saved: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if saved and (record.device == "cpu" or "added" in run.launched):  # rungs decide
        return
    gpus = max(run.launched["gpus"], saved.get("gpus", 1))  # the first run may have had one
    saved |= {
        "machine": f"{record.machine}, with {record.hardware.get('cores', '?')} cores",
        "gpus": gpus,
        "date": _day(run),
        "driver": record.versions.get("driver", ""),
        "versions": record.versions,
        "git_sha": git_sha(),
        "command": f"course record {target.name}"
        + (" --variants" if "added" in run.launched else f" --gpus {gpus}" * (gpus > 1)),
    }
    write_atomically(path, json.dumps(saved, indent=1) + "\n")


def _day(run: Run) -> str:
    return run.record.started_at[:10]
