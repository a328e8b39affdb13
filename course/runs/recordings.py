"""What other machines measured: real runs that the course ships, each a run folder as any.

recorded/MACHINE/index.json   machine, date, driver, versions, git_sha, command, and what else was
                              measured there once: ceilings, convolutions
recorded/scripts/             the versions of the script that they ran, one copy for all machines
recorded/MACHINE/RUN/         config, launch, record, steps, and the thin trace of a traced run
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.config import BEYOND, CHOICES, LADDER, Config
from course.runs.record import Record
from course.runs.run import RECORDED, Run

if TYPE_CHECKING:
    import pandas as pd

INDEX = "index.json"
SITE = "recorded-"  # in front of a machine's name: the site that answers from its recordings
TRACE = "trace-"  # in front of the rung of a run that was made for its trace
LABELS = ("rung", "data_root")  # of a config: they change nothing that is computed
SETUP = {"model": "resnet50", "data": "synthetic", "image_px": 224, "batch_size": 256}
NEAREST = 4  # so many recorded runs are named where none fits


def machines() -> list[str]:
    """The machines of which there are recordings."""
    return sorted(path.parent.name for path in RECORDED.glob(f"*/{INDEX}"))


def load(machine: str) -> dict[str, Any]:
    """The index of a machine, with "records": what its runs measured, in their order.

    Raises:
        ValueError: nothing was recorded there; the message lists the machines.
    """
    saved = json.loads((_folder(machine) / INDEX).read_text())
    return saved | {"records": [asdict(run.record) for run in recorded_runs(machine)]}


def recorded_runs(machine: str) -> list[Run]:
    """The recorded runs of a machine, in the order in which they ran."""
    found = [Run(path.parent) for path in _folder(machine).glob("*/record.json")]
    return sorted(found, key=lambda run: (run.record.started_at, run.name))


def origin(saved: dict[str, Any]) -> str:
    """When and with what it was recorded, in words: no recorded number is shown without."""
    torch_version = saved["versions"]["torch"].partition("+")[0]
    return f"recorded {saved['date']}, PyTorch {torch_version}"


def ladders(machine: str) -> dict[str, dict[tuple[str, str], Record]]:
    """The rungs of the ladder as recorded in SETUP, those on the GPU and those on the CPU apart.

    Returns:
        "GPU" and "CPU": what a rung measured there, by its name and its precision ("tf32" where
        that is on). Of several the last; of those that measured nothing, none.

    Raises:
        ValueError: nothing was recorded there; the message lists the machines.
    """
    found: dict[str, dict[tuple[str, str], Record]] = {"GPU": {}, "CPU": {}}
    for record in (run.record for run in recorded_runs(machine)):
        config, is_rung = record.config, record.rung in LADDER | BEYOND and record.gpus == 1
        if is_rung and record.images_per_s and SETUP.items() <= config.items():
            precision = "tf32" if config["tf32"] else config["precision"]
            found["CPU" if record.device == "cpu" else "GPU"][record.rung, precision] = record
    return found


def recorded(machine: str, data: str = "synthetic", device: str = "auto") -> pd.DataFrame:
    """The runs as they were recorded on another machine, shaped as by `ladder`.

    Runs that were made for their trace are left out: `trace_path` has those. Column `ratio` is
    that to the first baseline.

    Args:
        data: what the runs were fed with, as in a Config.
        device: "auto": each rung where the ladder has it, the baseline on the processor and the
            others on the accelerator; "cpu": the rungs on that machine's processor alone.

    Raises:
        ValueError: nothing was recorded on that machine, or with that data there, or another
            device; the message lists what there is.
    """
    import pandas as pd

    if device not in CHOICES["device"]:
        raise ValueError(f"device={device!r}: choose {' or '.join(CHOICES['device'])}")
    saved = load(machine)  # the machine of each record says that it is recorded, and when
    measured = [
        each
        for each in saved["records"]
        if each["data"] == data and not each["rung"].startswith(TRACE)
    ]
    table = pd.DataFrame([each for each in measured if _is_asked_for(each, device)])
    if table.empty:
        known = sorted({each["data"] for each in saved["records"]})
        raise ValueError(
            f"no run on {data} data is recorded on {machine}: there is "
            f"{', '.join(known) or 'nothing'}"
        )
    for setting in ("precision", "tf32", "channels_last", "batch_size", "workers"):
        table[setting] = [config[setting] for config in table["config"]]
    table["setup"] = [Config(**config).setup for config in table["config"]]
    first = table.loc[table["rung"].eq("baseline"), "images_per_s"]
    table["ratio"] = table["images_per_s"] / (first.iloc[0] if len(first) else math.nan)
    return table


def large(machine: str, rungs: Iterable[str]) -> pd.DataFrame:
    """The ladder's own rungs as recorded on a GPU that is kept busy: `recorded`, at batch 256.

    Args:
        rungs: names of the ladder; those that were not recorded so are left out.
    """
    table = recorded(machine)
    settings = [config == {**config, **_setting_of(config["rung"])} for config in table["config"]]
    large = table["batch_size"].eq(256) & table["rung"].isin([*rungs])
    return table[large.to_numpy() & settings]


def _setting_of(name: str) -> dict[str, Any]:
    """What a rung of the ladder sets, beside sizes."""
    config = (LADDER | BEYOND).get(name, Config())
    return {key: getattr(config, key) for key in ("precision", "tf32", "channels_last", "compile")}


def _is_asked_for(record: dict[str, Any], device: str) -> bool:
    """Is the run of the ladder on this device? The baseline begins both."""
    return record["rung"] == "baseline" or record["config"]["device"] == device


def trace_path(machine: str, name: str) -> Path:
    """The trace of a recorded run: a thin one of one training step.

    Raises:
        ValueError: no traced run of this name; the message lists those of the machine.
    """
    traced = {
        run.config.rung.removeprefix(TRACE): run.folder / run.record.trace
        for run in recorded_runs(machine)
        if run.config.rung.startswith(TRACE)
    }
    if name not in traced:
        raise ValueError(
            f"{machine} has no trace {name!r}: there are {', '.join(traced) or 'none'}"
        )
    return traced[name]


def trace_name(config: Config) -> str:
    """What a trace of a run with this config is called: after what tells it from others."""
    name = "tf32" if config.tf32 else config.rung
    return name + "_fp16" * (config.precision == "fp16") + "_cpu" * (config.device == "cpu")


def answer(machine: str, config: Config, gpus: int = 1) -> Run:
    """The run on so many GPUs that was recorded with this config; its labels may differ.

    The script is not compared: what ran is solutions/train.py of the recorded commit.

    Raises:
        ValueError: no such run was recorded; the message names those that come nearest.
    """
    wanted = _computed(config)
    known = [(run, _differences(run, wanted, gpus)) for run in recorded_runs(machine)]
    known.sort(key=lambda each: len(each[1]))
    for run, differences in known:
        if not differences:
            return run
    nearest = "\n".join(
        f"  {run.config.rung}: {', '.join(differences)}" for run, differences in known[:NEAREST]
    )
    raise ValueError(
        f"this run was not recorded on {machine}. Those that come nearest, and where they differ:\n"
        f"{nearest}\nrecorded({machine!r}) lists all. In a notebook, quick = False asks for what "
        f"was recorded"
    )


def _computed(config: Config) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key not in LABELS}


def _differences(run: Run, wanted: dict[str, Any], gpus: int) -> list[str]:
    there = _computed(run.config) | {"gpus": run.launched["gpus"]}
    asked = wanted | {"gpus": gpus}
    return [f"{key}={there[key]!r}" for key in asked if there[key] != asked[key]]


def _folder(machine: str) -> Path:
    if machine not in machines():
        known = ", ".join(machines())
        raise ValueError(f"nothing is recorded for {machine!r}: there are {known}")
    return RECORDED / machine
