"""What other machines measured: real runs that the course ships, each a run folder as any.

recorded/MACHINE/index.json   machine, date, driver, versions, git_sha, command, and what else was
                              measured there once: ceilings, convolutions
recorded/MACHINE/train.py     the script that all of them ran
recorded/MACHINE/RUN/         config, launch, record, steps, and the thin trace of a traced run
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.config import Config
from course.runs import RECORDED, Run

if TYPE_CHECKING:
    import pandas as pd

    from course.plans import Plan

INDEX = "index.json"
SITE = "recorded-"  # in front of a machine's name: the site that answers from its recordings
TRACE = "trace-"  # in front of the rung of a run that was made for its trace
LABELS = ("rung", "data_root")  # of a config: they change nothing that is computed
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
    return saved | {"records": [asdict(run.record) for run in runs(machine)]}


def runs(machine: str) -> list[Run]:
    """The recorded runs of a machine, in the order in which they ran."""
    found = [Run(path.parent) for path in _folder(machine).glob("*/record.json")]
    return sorted(found, key=lambda run: (run.record.started_at, run.name))


def origin(saved: dict[str, Any]) -> str:
    """When and with what it was recorded, in words: no recorded number is shown without."""
    torch_version = saved["versions"]["torch"].partition("+")[0]
    return f"recorded {saved['date']}, PyTorch {torch_version}"


def recorded(machine: str, data: str = "synthetic") -> pd.DataFrame:
    """The runs as they were recorded on another machine, shaped as by `ladder`.

    Runs that were made for their trace are left out: `trace_path` has those.

    Args:
        data: what the runs were fed with, as in a Config.

    Raises:
        ValueError: nothing was recorded there; the message lists the machines.
    """
    import pandas as pd

    saved = load(machine)  # the machine of each record says that it is recorded, and when
    measured = [each for each in saved["records"]
                if each["data"] == data and not each["rung"].startswith(TRACE)]  # fmt: skip
    table = pd.DataFrame(measured)
    for setting in ("precision", "tf32", "channels_last", "batch_size"):
        table[setting] = [config[setting] for config in table["config"]]
    table["setup"] = [Config(**config).setup for config in table["config"]]
    first = table.loc[table["rung"].eq("baseline"), "images_per_s"]
    table["ratio"] = table["images_per_s"] / (first.iloc[0] if len(first) else math.nan)
    return table


def trace_path(machine: str, name: str) -> Path:
    """The trace of a recorded run: a thin one of one training step.

    Raises:
        ValueError: no traced run of this name; the message lists those of the machine.
    """
    traced = {run.config.rung.removeprefix(TRACE): run.folder / run.record.trace
              for run in runs(machine) if run.config.rung.startswith(TRACE)}  # fmt: skip
    if name not in traced:
        raise ValueError(
            f"{machine} has no trace {name!r}: there are {', '.join(traced) or 'none'}"
        )
    return traced[name]


def trace_name(config: Config) -> str:
    """What a trace of a run with this config is called: after what tells it from others."""
    name = "tf32" if config.tf32 else config.rung
    return name + "_fp16" * (config.precision == "fp16")


def answer(asked: Plan) -> Run:
    """The recorded run that has the config and the GPU count which a launch asks for.

    The script is not compared: what ran is solutions/train.py of the recorded commit.

    Raises:
        ValueError: no such run was recorded; the message names those that come nearest.
    """
    machine = asked.place.name.removeprefix(SITE)
    wanted, gpus = _computed(asked.config), asked.request["gpus"]
    known = [(run, _differences(run, wanted, gpus)) for run in runs(machine)]
    known.sort(key=lambda each: len(each[1]))
    for run, differences in known:
        if not differences:
            print(f"{run}: on {run.record.machine}; nothing runs here")
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
