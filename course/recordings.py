"""What other machines measured: records of real runs that the course ships."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from course.config import Config

FOLDER = Path(__file__).with_name("recorded")


def load(machine: str) -> dict[str, Any]:
    """All that was recorded on another machine, as the JSON file has it.

    Raises:
        ValueError: nothing was recorded there; the message lists the machines.
    """
    path = FOLDER / f"{machine}.json"
    if not path.is_file():
        known = ", ".join(file.stem for file in sorted(FOLDER.glob("*.json")))
        raise ValueError(f"nothing is recorded for {machine!r}: there are {known}")
    return json.loads(path.read_text())


def origin(saved: dict[str, Any]) -> str:
    """When and with what it was recorded, in words: no recorded number is shown without."""
    torch_version = saved["versions"]["torch"].partition("+")[0]
    return f"recorded {saved['date']}, PyTorch {torch_version}"


def recorded(machine: str) -> pd.DataFrame:
    """The ladder as it was recorded on another machine, shaped as by `ladder`.

    Raises:
        ValueError: nothing was recorded there; the message lists the machines.
    """
    saved = load(machine)
    table = pd.DataFrame(saved["records"])
    table["machine"] += f" ({origin(saved)})"
    for setting in ("precision", "tf32", "channels_last", "batch_size"):
        table[setting] = [config[setting] for config in table["config"]]
    table["setup"] = [Config(**config).setup for config in table["config"]]
    table["ratio"] = table["images_per_s"] / table["images_per_s"][0]
    return table


def trace_path(machine: str, name: str) -> Path:
    """A trace that was recorded on another machine: a thin one of one training step.

    Raises:
        ValueError: no such trace; the message lists those of the machine.
    """
    path = FOLDER / f"{machine}-{name}.json.gz"
    if not path.is_file():
        load(machine)
        there = sorted(FOLDER.glob(f"{machine}-*.json.gz"))
        known = ", ".join(file.name.removesuffix(".json.gz")[len(machine) + 1 :] for file in there)
        raise ValueError(f"{machine} has no trace {name!r}: there are {known or 'none'}")
    return path
