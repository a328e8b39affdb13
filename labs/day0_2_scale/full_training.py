"""What a full training costs: the lab's function, its checks, and the recorded runs."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from course.runs.recordings import recorded, recorded_runs
from labs.day0_2_scale.published import EPOCHS, IMAGENET_IMAGES

FullTraining = Callable[[float, float, int], tuple[float, float, float]]
RUNGS = ("baseline", "device", "amp", "channels_last", "compile")


def full_training(images_per_s: float, watts: float, gpus: int) -> tuple[float, float, float]:
    """Return the hours, GPU hours and kWh of 90 epochs of ImageNet at a measured speed.

    Args:
        images_per_s: of all GPUs together.
        watts: of one GPU.
    """
    hours = EPOCHS * IMAGENET_IMAGES / images_per_s / 3600
    gpu_hours = gpus * hours
    return hours, gpu_hours, gpu_hours * watts / 1000


def check_hours(function: FullTraining) -> str:
    """Check hours and GPU hours, of one GPU and of four."""
    for gpus in (1, 4):
        expected, expected_gpu, _ = full_training(1000, 500, gpus)
        hours, gpu_hours, _ = _call(function, gpus)
        causes = {
            3600: "these are seconds: an hour has 3,600",
            60: "these are minutes: an hour has 60",
            1 / EPOCHS: f"this is one epoch: the training has {EPOCHS}",
            1 / gpus: "images_per_s is the speed of all GPUs together, so do not divide by gpus",
            gpus: "images_per_s is the speed of all GPUs together, so do not multiply by gpus",
        }
        _compare("hours", gpus, hours, expected, causes)
        causes = {1 / gpus: "each of the GPUs is used for all these hours"}
        causes |= {1 / gpus**2: "multiply the hours by the number of GPUs, do not divide"}
        _compare("gpu_hours", gpus, gpu_hours, expected_gpu, causes)
    return (
        f"1,000 images/s take {expected:.0f} hours; on 4 GPUs, that is {expected_gpu:.0f} GPU hours"
    )


def check_energy(function: FullTraining) -> str:
    """Check the kilowatt-hours, of one GPU and of four."""
    for gpus in (1, 4):
        *_, expected = full_training(1000, 500, gpus)
        *_, kwh = _call(function, gpus)
        causes = {
            1000: "these are watt-hours: a kilowatt-hour has 1,000",
            3600: "this energy is larger by 3,600: hours × watts are already watt-hours",
            3.6e6: "these are joules: a kilowatt-hour has 3.6 million",
            1 / gpus: "this is the energy of one GPU: watts is the power of one",
            gpus: "the number of GPUs counts twice: GPU hours already contain it",
        }
        _compare("kwh", gpus, kwh, expected, causes)
    return f"4 GPUs of 500 W need {expected:.0f} kWh"


def _call(function: FullTraining, gpus: int) -> tuple[float, float, float]:
    result = function(1000, 500, gpus)
    assert isinstance(result, tuple) and len(result) == 3, (
        f"it returns {result!r}: expected three numbers, `hours, gpu_hours, kwh`"
    )
    return result


def _compare(name: str, gpus: int, value: float, expected: float, causes: dict[float, str]) -> None:
    """Raise AssertionError with the likely cause if a value is not the expected one."""
    if abs(value / expected - 1) < 5e-4:  # a whole number of hours would be too rough
        return
    near = [words for factor, words in causes.items() if abs(value / expected / factor - 1) < 1e-3]
    if abs(value - expected) < 1:
        near = ["this is rounded: return all digits, so `/` instead of `//`, no int() or round()"]
    cause = near[0] if near else "check its units, and which numbers belong to all GPUs"
    raise AssertionError(
        f"{name} at 1,000 images/s and 500 W, {gpus} GPU{'s' * (gpus > 1)}: {value:.4g}, "
        f"expected {expected:.4g}: {cause}"
    )


def one_gpu() -> pd.DataFrame:
    """Return recorded runs of the ladder: the first on a CPU, the others on one H100."""
    table = recorded("nvidia-h100")
    wanted = table["rung"].isin(RUNGS) & table["batch_size"].eq(256)
    return table[wanted & table["precision"].isin(["fp32", "bf16"])]


def several_gpus() -> pd.DataFrame:
    """Return runs of one rung on 1, 2 and 4 H100s, and on 4 with a slow network between them.

    Column `network` is how the GPUs exchange data.
    """
    rows = []
    for run in recorded_runs("nvidia-h100-x4", "network"):
        if run.config.rung != "channels_last" or run.config.hosts not in (1, run.record.gpus):
            continue
        if (run.config.hosts, run.record.gpus) != (2, 2):
            between = "NVLink" if run.config.hosts == 1 else "sockets"
            rows.append(vars(run.record) | {"network": "–" if run.record.gpus == 1 else between})
    return (
        pd.DataFrame(rows)
        .sort_values("images_per_s")
        .sort_values("network", kind="stable", key=lambda names: names.eq("sockets"))
    )


def estimate_runs(runs: pd.DataFrame, function: FullTraining) -> pd.DataFrame:
    """Add what a full training costs to recorded runs; energy is NaN if watts were not measured.

    Only training steps count, without reading files or validation.

    Args:
        runs: records with rung, gpus, images_per_s and watts.
        function: like `full_training`.
    """
    columns = ["rung", "gpus", *(["network"] if "network" in runs else []), "images_per_s", "watts"]
    table = runs[columns].reset_index(drop=True).astype({"watts": float})
    rows = zip(table["images_per_s"], table["watts"], table["gpus"])
    costs = pd.DataFrame([function(*row) for row in rows], columns=["hours", "gpu_hours", "kwh"])
    return pd.concat([table, costs], axis=1)
