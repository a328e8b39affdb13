"""Recorded machines: tables of real runs on other machines, which the course ships.

recordings/MACHINE/index.json       machine, date, driver, versions, git_sha, command, and other
                                    measurements: ceilings, convolutions
recordings/MACHINE/runs.jsonl       one line per run, and
recordings/MACHINE/steps.jsonl.gz   the steps of each (`course.runs.rows`)
recordings/MACHINE/traces/          a folder for each run with a thin trace or a different file;
                                    counters of Nsight Compute

Every function with a machine raises ValueError, with a list of machines, if it was not recorded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from course.config import QUICK, RUNGS, Config, all_settings, from_dict, resolve_half
from course.runs import rows
from course.runs.files import write_atomically
from course.runs.run import RECORDED, TRACES, RecordedRun, Run

if TYPE_CHECKING:
    import pandas as pd

INDEX = "index.json"
LOCK = ".lock"  # held by a process that changes a machine's files
SITE = "recorded-"  # prefix of a site that answers from a machine's recordings, before its name
TRACE = "trace-"  # prefix of the rung of a run that was recorded for its trace
# Purposes: LADDER's measure rungs as they are. A run's purpose is stored with it, and runs are
# selected by it; labs record other runs for purposes of their own (`course.checks.lab.Recording`).
LADDER = ("throughput", "scaling", "communication", "batch sizes", "notebook")
VARIANT = "variant"  # a script with added lines, which a notebook launches to show what they do
PURPOSES = (*LADDER, "trace", VARIANT)
FULL_BATCH = ("throughput", "scaling")  # on one GPU, both measure a rung at full speed
LABELS = ("rung", "script", "data_root")  # config fields that change nothing that is computed
LOADING_FIELDS = ("uint8",)  # config fields that do not matter for a rung as it is
SETUP = {"model": "resnet50", "data": "synthetic", "image_px": 224, "batch_size": 256}
NEAREST = 4  # how many recorded runs an error names if none matches


def machines() -> list[str]:
    """Return the names of the recorded machines."""
    return sorted(path.parent.name for path in RECORDED.glob(f"*/{INDEX}"))


def load(machine: str) -> dict[str, Any]:
    """Read the index of a machine."""
    return json.loads((_folder(machine) / INDEX).read_text())


def part(machine: str, name: str) -> Any:
    """Return a part of a machine's index: one measurement.

    Raises:
        ValueError: nothing was recorded there, or no such part; the message lists where it is.
    """
    index = load(machine)
    if name not in index:
        available = ", ".join(m for m in machines() if name in load(m)) or "no machine has it"
        raise ValueError(f"no {name} is recorded for {machine!r}: {available}")
    return index[name]


def recorded_table(machine: str, part_name: str) -> pd.DataFrame:
    """Return a measurement stored in a machine's index as a table; `machine` includes the date.

    Raises:
        ValueError: nothing was recorded there, or no such part; the message lists where it is.
    """
    import pandas as pd

    saved = part(machine, part_name)
    date = origin({"date": saved["date"], "versions": {"torch": saved["torch"]}})
    return pd.DataFrame(saved["rows"]).assign(machine=f"{saved['machine']} ({date})")


def save(machine: str, parts: dict[str, Any]) -> None:
    """Add or replace parts of a machine's index. Two processes can save at the same time."""
    folder = _folder(machine)
    with FileLock(folder / LOCK, mode=0o600):
        text = json.dumps(load(machine) | parts, indent=1) + "\n"
        write_atomically(folder / INDEX, text)


def trace_folder(machine: str) -> Path:
    """Return the folder of a machine's profiler output."""
    return _folder(machine) / TRACES


def recorded_runs(machine: str, *purposes: str) -> list[Run]:
    """Return the recorded runs of a machine, in the order in which they ran.

    Args:
        purposes: return only runs that were recorded for these; all runs by default.

    Raises:
        ValueError: nothing was recorded there, or no such purpose; the message lists what there is.
    """
    table = _folder(machine) / rows.RUNS
    runs = _runs(table, rows.version(table))
    if unknown := {*purposes} - {*PURPOSES} - {run.purpose for run in runs}:
        known = {run.purpose for other in machines() for run in recorded_runs(other)}
        if wrong := unknown - known:  # on any machine
            choices = ", ".join(sorted({*known, *PURPOSES}))
            raise ValueError(f"no purpose {min(wrong)!r} of a recorded run: choose {choices}")
    return [run for run in runs if not purposes or run.purpose in purposes]


@lru_cache(maxsize=32)  # every query reads all runs of a machine
def _runs(table: Path, _version: tuple[int, ...]) -> list[RecordedRun]:
    runs = [RecordedRun(table.parent / TRACES / name) for name in rows.names(table)]
    return sorted(runs, key=lambda run: (run.record.started_at, run.name))


def origin(saved: dict[str, Any]) -> str:
    """Return date and PyTorch version of a recording, to show next to its numbers."""
    torch_version = saved["versions"]["torch"].partition("+")[0]
    return f"recorded {saved['date']}, PyTorch {torch_version}"


def recorded(machine: str) -> pd.DataFrame:
    """Return a machine's runs of the ladder on synthetic data, as a table like `ladder_table`.

    The baseline ran on the CPU, all other rungs on the accelerator. Only runs of the purposes
    LADDER are included: see `trace_path` and `recorded_runs`. Column `ratio` is relative to the
    first baseline.

    Raises:
        ValueError: nothing was recorded on that machine, and the message lists what there is; or no
            run of the ladder.
    """
    runs = _on_ladder(machine)
    if not runs:
        raise ValueError(
            f"{machine}: no run of the ladder was recorded; recorded_runs({machine!r}) lists its "
            f"runs, and recorded({machine.rpartition('-x')[0] or machine!r}) may have the ladder"
        )
    return _table(runs)


def _on_ladder(machine: str) -> list[Run]:
    """Return the runs of the ladder on synthetic data, the baseline first."""
    runs = [
        run
        for run in recorded_runs(machine)
        if run.purpose in LADDER
        and run.config.data == "synthetic"
        and (run.config.rung == "baseline" or run.config.device == "auto")
    ]
    return sorted(runs, key=lambda run: run.config.device == "auto")


def _table(runs: Iterable[Run]) -> pd.DataFrame:
    import pandas as pd

    # Each record's machine includes when it was recorded.
    table = pd.DataFrame([vars(run.record) for run in runs])
    for setting in ("precision", "channels_last", "batch_size", "workers"):
        table[setting] = [config[setting] for config in table["config"]]
    table["setup"] = [from_dict(config).setup for config in table["config"]]
    first = table.loc[table["rung"].eq("baseline"), "images_per_s"]
    table["ratio"] = table["images_per_s"] / (first.iloc[0] if len(first) else math.nan)
    return table


def full_batch_ladder(machine: str, rungs: Iterable[str]) -> pd.DataFrame:
    """Return the ladder's rungs as recorded at batch 256, which keeps a GPU busy. See `recorded`.

    Args:
        rungs: names of rungs; those that were not recorded at batch 256 are left out.
    """
    runs, wanted = _on_ladder(machine), set(rungs)
    is_wanted = [
        run.purpose in FULL_BATCH
        and run.config.batch_size == SETUP["batch_size"]
        and run.config.rung in wanted
        and _computes_rung(run)
        for run in runs
    ]
    return _table(runs)[is_wanted]


def _computes_rung(run: Run) -> bool:
    """Return whether a run computes the same as the rung of its name, regardless of sizes."""
    wanted = RUNGS.get(run.config.rung, Config())
    names = ("precision", "channels_last", "compile")
    return all(_fits(run, name, getattr(wanted, name)) for name in names)


def _fits(run: Run, name: str, wanted: Any) -> bool:
    """Return whether the run computed with this setting; `half` is its machine's format."""
    if name == "precision" and wanted == "half":
        formats = run.record.hardware.get("half_units", [])
        wanted = resolve_half(formats, scales_loss=run.config.scales_loss)
    return getattr(run.config, name) == wanted


def trace_path(machine: str, name: str) -> Path:
    """Return the path of a recorded run's trace, which contains one training step.

    Raises:
        ValueError: no traced run of this name; the message lists those of the machine.
    """
    traced = {
        run.config.rung.removeprefix(TRACE): run.folder / run.record.trace
        for run in recorded_runs(machine, "trace")
    }
    if name not in traced:
        raise ValueError(
            f"{machine} has no trace {name!r}: there are {', '.join(traced) or 'none'}"
        )
    return traced[name]


def trace_name(config: Config) -> str:
    """Return the name of the trace of a run with this config."""
    name = "tf32" if config.precision == "tf32" else config.rung
    return name + "_fp16" * (config.precision == "fp16") + "_cpu" * (config.device == "cpu")


def answer(machine: str, config: Config, gpus: int = 1, added: dict[str, str] | None = None) -> Run:
    """Return the last run that was recorded with this config on this number of GPUs.

    Its LABELS may differ, but a run of this rung is preferred. The script is not compared: the
    recorded script is solutions/train.py of the recorded commit, or a variant of it.

    Args:
        added: the lines that a variant adds to the solution, by the line before them.

    Raises:
        ValueError: no such run was recorded; the message names the most similar runs.
    """
    config = config.fitted(has_accelerator=config.device != "cpu")
    wanted = {key: value for key, value in all_settings(config).items() if key not in LABELS}
    newest = ((run, run.launched) for run in reversed(recorded_runs(machine)))
    same_script = [(run, request) for run, request in newest if request.get("added") == added]
    if added and not same_script:
        raise ValueError(
            f"no script with these added lines was recorded on {machine}: {added}. Launch it on a "
            f"different site, such as site='local'"
        )
    candidates = [
        (_differences(run, request, wanted, gpus), run, request) for run, request in same_script
    ]

    def sort_key(candidate: tuple) -> tuple:
        differences, run, request = candidate
        # A run for a lab's own purpose may repeat one of the ladder, which answers first.
        is_off_ladder = request.get("purpose", "") not in LADDER
        return len(differences), run.config.rung != config.rung, is_off_ladder

    candidates.sort(key=sort_key)
    if candidates and not candidates[0][0]:
        return candidates[0][1]
    nearest = "\n".join(
        f"  {run.config.rung}: {', '.join(differences)}"
        for differences, run, _ in candidates[:NEAREST]
    )
    advice = f"\nrecorded({machine!r}) lists all"
    names = {text.partition("=")[0] for text in candidates[0][0]} if candidates else set()
    if added is None and names & {*QUICK}:  # variants were recorded at the quick size
        advice += ". In a notebook, quick = False requests the recorded sizes"
    raise ValueError(
        f"this run was not recorded on {machine}. The most similar runs, and how they differ:\n"
        f"{nearest}{advice}"
    )


def _differences(run: Run, request: dict[str, Any], wanted: dict[str, Any], gpus: int) -> list[str]:
    is_rung = request.get("purpose", "") in (*LADDER, VARIANT)
    names = [name for name in wanted if not (is_rung and name in LOADING_FIELDS)]
    differing = [name for name in names if not _fits(run, name, wanted[name])]
    texts = [f"{name}={getattr(run.config, name)!r}" for name in differing]
    return texts + ([f"gpus={request['gpus']}"] if request["gpus"] != gpus else [])


def _folder(machine: str) -> Path:
    if machine not in machines():
        raise ValueError(f"nothing is recorded for {machine!r}: there are {', '.join(machines())}")
    return RECORDED / machine
