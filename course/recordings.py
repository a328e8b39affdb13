"""What other machines measured: records of real runs that the course ships."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from course.config import Config

FOLDER = Path(__file__).with_name("recorded")


def recorded(machine: str) -> pd.DataFrame:
    """The ladder as it was recorded on another machine, shaped as by `ladder`.

    Raises:
        ValueError: nothing was recorded there; the message lists the machines.
    """
    path = FOLDER / f"{machine}.json"
    if not path.is_file():
        known = ", ".join(file.stem for file in sorted(FOLDER.glob("*.json")))
        raise ValueError(f"nothing is recorded for {machine!r}: there are {known}")
    saved = json.loads(path.read_text())
    table = pd.DataFrame(saved["records"])
    torch_version = saved["versions"]["torch"].partition("+")[0]
    table["machine"] += f" (recorded {saved['date']}, PyTorch {torch_version})"
    for setting in ("precision", "tf32", "channels_last", "batch_size"):
        table[setting] = [config[setting] for config in table["config"]]
    table["setup"] = [Config(**config).setup for config in table["config"]]
    table["ratio"] = table["images_per_s"] / table["images_per_s"][0]
    return table
