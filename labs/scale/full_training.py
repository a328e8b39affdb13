"""What a full training costs: the lab's function, its checks, and the recorded runs."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from course import recorded, recorded_runs
from course.lab import results
from labs.scale.published import EPOCHS, IMAGENET_IMAGES

FullTraining = Callable[[float, float, int], tuple[float, float, float]]
Case = tuple[float, float, int]  # images_per_s, watts, gpus
# Chosen so that a rounded number of hours differs, also from that of 1.28 million images.
CASES: tuple[Case, ...] = ((1500, 700, 1), (6100, 612.5, 4), (950, 250, 1), (2345.6, 480, 6))
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
    """Check hours and GPU hours, for several speeds and numbers of GPUs."""
    for case in CASES:
        *_, gpus = case
        expected, expected_gpu, _ = full_training(*case)
        hours, gpu_hours, _ = _call(function, case)
        causes = {
            1.28e6 / IMAGENET_IMAGES: "the training set has 1,281,167 images, not 1.28 million",
            int(expected) / expected: "keep the fraction of an hour: `/` instead of `//`",
            round(expected) / expected: "keep the fraction of an hour: don't round",
            3600: "these are seconds: an hour has 3,600",
            60: "these are minutes: an hour has 60",
            1 / EPOCHS: f"this is one epoch: the training has {EPOCHS}",
            1 / gpus: "images_per_s is the speed of all GPUs together, so do not divide by gpus",
            gpus: "images_per_s is the speed of all GPUs together, so do not multiply by gpus",
        }
        _compare("hours", case, hours, expected, causes)
        causes = {1 / gpus: "each of the GPUs is used for all these hours"}
        causes |= {1 / gpus**2: "multiply the hours by the number of GPUs, do not divide"}
        _compare("gpu_hours", case, gpu_hours, expected_gpu, causes)
    return f"hours and GPU hours of {len(CASES)} training runs, on up to {gpus} GPUs"


def check_energy(function: FullTraining) -> str:
    """Check the kilowatt-hours, for several GPUs and numbers of them."""
    for case in CASES:
        *_, gpus = case
        *_, expected = full_training(*case)
        *_, kwh = _call(function, case)
        causes = {
            1000: "these are watt-hours: a kilowatt-hour has 1,000",
            3600: "this energy is larger by 3,600: hours × watts are already watt-hours",
            3.6e6: "these are joules: a kilowatt-hour has 3.6 million",
            1 / gpus: "this is the energy of one GPU: watts is the power of one",
            gpus: "the number of GPUs counts twice: GPU hours already contain it",
        }
        _compare("kwh", case, kwh, expected, causes, tolerance=5e-3)  # 16 kWh instead of 16.01
    return f"the energy of {len(CASES)} training runs; the last needs {expected:,.0f} kWh"


def _call(function: FullTraining, case: Case) -> list[float]:
    return results.numbers(function(*case), "hours, gpu_hours, kwh")


def _compare(
    name: str,
    case: Case,
    value: float,
    expected: float,
    causes: dict[float, str],
    tolerance: float = 5e-4,
) -> None:
    images_per_s, watts, gpus = case
    words = f"{name} at {images_per_s:,} images/s and {watts} W, {gpus} GPU{'s' * (gpus > 1)}"
    mistakes = {factor * expected: cause for factor, cause in causes.items()}
    rule = "check its units, and which numbers belong to all GPUs"
    results.compare(words, value, expected, mistakes, rule=rule, tolerance=tolerance)


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


def costs_on_one_gpu(function: FullTraining) -> pd.DataFrame:
    """Return what a full training costs with each rung, by a function like `full_training`."""
    return estimate_runs(one_gpu(), function)


def costs_on_several_gpus(function: FullTraining) -> pd.DataFrame:
    """Return what a full training costs on 1, 2 and 4 GPUs, by a function like `full_training`."""
    return estimate_runs(several_gpus(), function)


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
