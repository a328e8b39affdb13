"""Why scale and why energy: published training times and power, and what follows from them.

The facts lie in training_times.csv and power.csv, each row with its source. What is worked out
from them here is arithmetic, and says so.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

IMAGENET_IMAGES = 1_281_167  # training images of ImageNet-1k (ILSVRC 2012)
EPOCHS = 90  # of the published trainings that say how many


def training_times() -> pd.DataFrame:
    """Published trainings of ResNet-50 on ImageNet, the slowest first.

    Columns who, date, devices, device, minutes, epochs, images_per_s, source are as published
    (empty: not told). Worked out: `device_hours`, devices × hours; `images_per_s_each`, for one
    device, from the images a second or else from epochs × 1,281,167 images.
    """
    table = _read("training_times.csv")
    seconds = table["minutes"] * 60
    rate = table["images_per_s"].fillna(table["epochs"] * IMAGENET_IMAGES / seconds)
    return table.assign(
        device_hours=table["devices"] * table["minutes"] / 60,
        images_per_s_each=rate / table["devices"],
    ).sort_values("minutes", ascending=False, ignore_index=True)


def power() -> pd.DataFrame:
    """Watts of GPUs: device, max_w, idle_w, performance (of an A100 SXM's), source.

    Worked out: `performance_per_kw`, the performance at full power for each 1,000 W.
    """
    table = _read("power.csv")
    return table.assign(performance_per_kw=table["performance"] / table["max_w"] * 1000)


def max_watts(machine: str) -> float | None:
    """The most that a GPU of this name may draw, by the table; None where it is not in it.

    Where a name fits several forms ("NVIDIA A100"), the largest: it is a ceiling.
    """
    words = machine.upper().replace("-", " ").split()
    fits = [
        (len({*words} & {*name.upper().split()}), watts)
        for name, watts in power()[["device", "max_w"]].itertuples(index=False)
        if name.split()[0].upper() in words
    ]
    return float(max(fits)[1]) if fits else None


def full_training(runs: pd.DataFrame, epochs: int = EPOCHS) -> pd.DataFrame:
    """How long runs of one device would take to train on all of ImageNet, and their energy.

    An estimate: only training steps are counted, at the measured speed. `watts` are the mean
    that the device itself measured, or else the most that it may draw; `watts_are` says which.

    Args:
        runs: records, as `course.recorded` gives them: rung, machine, images_per_s, watts.
    """
    table = runs[["rung", "machine", "images_per_s"]].reset_index(drop=True)
    hours = epochs * IMAGENET_IMAGES / table["images_per_s"] / 3600
    told = [power_of(machine, watts) for machine, watts in zip(table["machine"], _measured(runs))]
    watts = [each[0] for each in told]
    return table.assign(
        hours=hours, watts=watts, watts_are=[each[1] for each in told], kwh=hours * watts / 1000
    )


def power_of(machine: str, measured: float | None = None) -> tuple[float, str]:
    """Watts of a machine, and what they are: measured, or the table's maximum, or not known."""
    if measured is not None and not math.isnan(measured):
        return measured, "measured"
    most = max_watts(machine)
    return (math.nan, "not known") if most is None else (most, "its maximum")


def _measured(runs: pd.DataFrame) -> list[float]:
    if "watts" not in runs:  # records of before the course read a meter
        return [math.nan] * len(runs)
    return [math.nan if watts is None else float(watts) for watts in runs["watts"]]


def _read(name: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(Path(__file__).with_name(name))
