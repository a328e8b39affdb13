"""Record a machine: run the labs' configs on it, and add the results to recordings/."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from course.checks import discovery
from course.checks.lab import Planned, Recording
from course.config import Config
from course.jobs.launch import launch
from course.runs import rows
from course.runs.files import write_atomically
from course.runs.recordings import INDEX, LOCK, SITE, VARIANT, origin
from course.runs.run import TRACES, RecordedRun, Run, all_runs, git_sha, runs_root
from labs.search import configs as tuned
from tools import thin_trace

if TYPE_CHECKING:
    import pandas as pd

TRACE_BYTES = 600_000  # the largest trace that may be shipped
TIME_FIELDS = re.compile(r".*(_s|_s_q\d|_gib|watts|joules_per_image)$")  # of a record
LEARNING_STEPS = 128  # number of steps stored of a run whose times mean nothing
TIME_MIN = 5  # for each run


def recordings() -> list[Recording]:
    """Return the recordings of all labs, by purpose, in the order of the course."""
    listed = [recording for lab in discovery.labs() for recording in lab.recordings]
    purposes = [recording.purpose for recording in listed]
    return sorted(listed, key=lambda recording: purposes.index(recording.purpose))


def plan(only: str = "*", gpus: int = 1) -> list[Planned]:
    """List what `course record` runs: the recordings of all labs, by purpose.

    Args:
        only: a shell pattern for the configs' labels (`label`).
        gpus: the number of GPUs of the machine.
    """
    planned = [run for recording in recordings() for run in recording.planned(gpus)]
    if chosen := [run for run in planned if fnmatch(label(run.config), only)]:
        return chosen
    names = ", ".join(dict.fromkeys(label(run.config) for run in planned))
    raise ValueError(f"no rung fits {only!r}: there are {names}")


def label(config: Config) -> str:
    """Return a config's rung, with -cpu for a rung that usually runs on a GPU."""
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
    refused = []
    for config, gpus, purpose in planned:
        run = launch(f"solutions/{config.script}", config, gpus=gpus, time_min=TIME_MIN)
        run.wait(check=False)
        print(f"{run}: {run.record.images_per_s or run.record.error}", flush=True)
        refused += _pack_all([run], folder / machine, purpose)
    return _finish(folder / machine, refused)


def pack_variants(machine: str, folder: Path) -> Path:
    """Pack the runs of modified scripts that notebooks have launched on this machine.

    The last of several equal runs is packed.

    Raises:
        ValueError: there is no such run, or some could not be packed; all others were.
    """
    runs = [run for run in all_runs() if "added" in run.launched]
    if not runs:
        raise ValueError(f"no variant of a script has run in {runs_root()}: run a notebook first")
    runs.sort(key=lambda run: run.launched["launched_at"])
    last = {}
    for run in runs:
        request = [run.launched["added"], run.gpus, asdict(run.requested_config)]
        last[json.dumps(request, sort_keys=True)] = run
    return _finish(folder / machine, _pack_all(last.values(), folder / machine, VARIANT))


def record_searches(machine: str, folder: Path, only: str = "*") -> Path:
    """Run searches on this machine, and pack each trial as soon as its search ends.

    Each network's accuracy on images that no search used is packed with it.

    Args:
        only: a shell pattern for the searches' names.
    """
    from labs.search import holdout
    from labs.search.studies import search

    names = [name for name in tuned.SEARCHES if fnmatch(name, only)]
    if not names:
        raise ValueError(f"no search fits {only!r}: there are {', '.join(tuned.SEARCHES)}")
    refused = []
    for name in names:
        study = search(**tuned.recorded_search(name))
        for run in study.runs:
            if run.status == "ok":
                holdout.holdout_accuracy(run)
        refused += _pack_all(study.runs, folder / machine, "search")
    return _finish(folder / machine, refused)


def _pack_all(runs: Iterable[Run], target: Path, purpose: str) -> list[str]:
    """Pack runs, and return the messages of those that could not be packed."""
    refused = []
    for run in runs:
        try:
            pack(run, target, purpose)
        except ValueError as error:
            refused.append(str(error))
    return refused


def _finish(target: Path, refused: list[str]) -> Path:
    if refused:
        raise ValueError("\n".join(refused))
    return target


def pack(run: Run, target: Path, purpose: str) -> Run:
    """Add a run to a machine's tables, without this machine's paths and with a thin trace.

    A run of the same name is replaced, with its files; all others stay unchanged.

    Args:
        target: the machine's folder.
        purpose: why it was run, a lab's or `VARIANT`; labs select runs by it.

    Returns:
        The recorded run.

    Raises:
        ValueError: the run has not ended, its thin trace is too large, or no such purpose.
    """
    kept = {VARIANT: "all"} | {recording.purpose: recording.keep for recording in recordings()}
    if purpose not in kept:
        raise ValueError(f"no purpose {purpose!r} of a recorded run: choose {', '.join(kept)}")
    keep = kept[purpose]
    if run.record is None or not run.record.machine:
        reason = run.record.error if run.record else "it has not ended"
        raise ValueError(f"{run} measured nothing, so there is nothing to pack: {reason}")
    if len(run.together) > 1:
        raise ValueError(f"{run} took turns, and the others would be lost: record it alone")
    target.mkdir(parents=True, exist_ok=True)
    row = {"run": run.name} | _row(run, target.name, purpose, keep)
    steps = [_columns(run.rank_steps(rank), keep) for rank in range(run.gpus)]
    packed = RecordedRun(target / TRACES / run.name)
    with tempfile.TemporaryDirectory(dir=target) as draft:
        new, old = Path(draft, "new"), Path(draft, "old")
        new.mkdir()
        _copy_files(run, new)
        with FileLock(
            target / LOCK, mode=0o600
        ):  # two processes can record at once, each on its GPU
            rows.write(target / rows.STEPS, {"run": run.name, "ranks": steps})
            if packed.folder.exists():
                packed.folder.replace(old)
            if any(new.iterdir()):
                packed.folder.parent.mkdir(exist_ok=True)
                new.replace(packed.folder)
            rows.write(target / rows.RUNS, row)  # last, after the files that it refers to
            _write_index(run, target)
    return packed


def _row(run: Run, machine: str, purpose: str, keep: str) -> dict[str, Any]:
    """Return config, request, record, ranks and test of a run, if it has them."""
    launched, config = run.launched, asdict(run.requested_config)
    names = ("gpus", "executor", "git_sha", "launched_at", "added", "trial")
    request = {"rung": launched["rung"], "purpose": purpose}
    request |= {name: launched[name] for name in names if name in launched}
    request |= {"site": SITE + machine, "script": run.source}
    record = run.record.to_values() | {"site": SITE + machine, "logs": []}
    # Store it in the data itself, so that every table and picture shows it.
    record["machine"] += f" ({origin({'date': _date(run), 'versions': run.record.versions})})"
    record["error"] = record["error"].replace(str(run.folder), "RUN")
    if keep != "all":
        record |= {"evidence": {}}
    if keep == "losses":
        record |= {name: None for name in record if TIME_FIELDS.match(name)}
    record["config"] = {
        name: value for name, value in run.record.config.items() if config.get(name) != value
    }
    hosts = list(dict.fromkeys(rank["host"] for rank in run.ranks))
    # It matters which ranks shared a node, not the node's name.
    ranks = [rank | {"host": f"node-{hosts.index(rank['host'])}"} for rank in run.ranks]
    optional = {"ranks": ranks, "test": run.part("test")}
    optional = {name: value for name, value in optional.items() if value}
    return {"config": config, "request": request, "record": record} | optional


def _columns(steps: pd.DataFrame, keep: str) -> dict[str, list]:
    """Return the columns of a rank's steps, with times to 0.1 µs and losses to 1e-6.

    Unless all is kept, only loss and learning rate, of some steps.
    """
    if keep != "all" and len(steps):
        steps = steps[["step", "epoch", "loss", "lr"]].iloc[:: -(-len(steps) // LEARNING_STEPS)]
        steps = steps.assign(loss=[float(f"{loss:.5g}") for loss in steps["loss"]])
    else:
        digits = {name: 7 for name in steps if name.endswith("_s")}
        steps = steps.round(digits | {"loss": 6})
    return {
        name: [None if value != value else value for value in column.tolist()]  # JSON has no NaN
        for name, column in steps.items()
    }


def _copy_files(run: Run, folder: Path) -> None:
    """Copy a run's files into a folder: its thin trace, and BatchNorm's statistics."""
    if run.record.trace:
        thin = thin_trace.thin(run.folder / run.record.trace, folder / run.record.trace)
        if (size := thin.stat().st_size) > TRACE_BYTES:
            raise ValueError(f"{run}: its trace has {size:,} bytes, more than {TRACE_BYTES:,}")
    for path in run.folder.glob("batchnorm-*.pt"):
        shutil.copy(path, folder)


def _write_index(run: Run, target: Path) -> None:
    """Write the machine's fields of the index; measurements of other tools stay."""
    path, record, is_variant = target / INDEX, run.record, "added" in run.launched
    index: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if index and (record.device == "cpu" or is_variant):  # a rung on the GPU describes it better
        return
    gpus = max(run.gpus, index.get("gpus", 1))  # the first run may have had one
    options = " --variants" if is_variant else f" --gpus {gpus}" * (gpus > 1)
    index |= {
        "machine": f"{record.machine}, with {record.hardware.get('cores', '?')} cores",
        "gpus": gpus,
        "date": _date(run),
        "driver": record.versions.get("driver", ""),
        "versions": record.versions,
        "git_sha": git_sha(),
        "command": f"course record {target.name}{options}",
    }
    write_atomically(path, json.dumps(index, indent=1) + "\n")


def _date(run: Run) -> str:
    return run.record.started_at[:10]
