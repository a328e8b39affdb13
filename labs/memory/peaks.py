"""Predicted peaks of memory, compared with measured ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from typing import Any

import pandas as pd

from course import Config, Run, recorded
from course.lab import CHOICES, all_settings, from_dict
from course.runs import recordings, rows_of
from course.training import memory_prediction

MACHINE = "nvidia-h100"
SAVED = "predicted"  # the key of saved predictions in a machine's index
MEMORY_KIND = "device allocator"  # the kind of measured peak that can be predicted
SETTINGS = ("batch_size", "model", "precision", "channels_last", "fused", "compile")
IGNORED = {  # fields of a config that do not change its prediction
    "rung",
    "script",
    "data_root",
    "epochs",
    "steps",
    "warmup_steps",
    "profile_steps",
    "val_steps",
    "workers",
    "uint8",  # of files; predictions are for synthetic data
    "lr",
    "weight_decay",
    "seed",
    "memory_gib",
    "fused",
    "compile",
}
Key = frozenset[tuple[str, Any]]  # the fields that a prediction depends on, with their values


def compare_peaks(runs: Iterable[Run] | pd.DataFrame) -> pd.DataFrame:
    """Compare the peaks of runs on a GPU with predictions made now, some seconds per config.

    There is one row per run that ended ok or out of memory; runs that are equal in all columns
    share a row. Columns: setting (in words), batch_size, model, precision, channels_last, fused,
    compile, inputs, status, measured_gib (NaN if the run ran out of memory, before its peak),
    predicted_gib, error (predicted ÷ measured − 1), limit_gib (available to the run; NaN: not
    recorded), machine, predictor (the PyTorch version).

    Args:
        runs: finished runs, or a table of records from `recorded`.

    Raises:
        ValueError: a run has not finished, or no run measured a device's allocator.
    """
    rows = _comparable(runs)
    return _compare(rows, _predictions(rows), _torch_version())


def recorded_peaks(machine: str = MACHINE) -> pd.DataFrame:
    """Return the table of `compare_peaks` for the ladder's recorded runs, from saved predictions.

    Raises:
        ValueError: the machine has no recorded runs, or one of them has no saved prediction.
    """
    rows = _comparable(recorded(machine))
    saved = recordings.load(machine).get(SAVED, {"torch": "", "peaks": []})
    peaks = {_key(from_dict(row["config"])): row["peak_gib"] for row in saved["peaks"]}
    for config in (from_dict(row["config"]) for row in rows):
        if _key(config) not in peaks:
            raise ValueError(
                f"no prediction is saved for {config.rung}, {config.setup}, recorded on {machine}: "
                f"run labs.memory.peaks.save_predictions({machine!r})"
            )
    return _compare(rows, peaks, saved["torch"])


def save_predictions(machine: str = MACHINE) -> None:
    """Predict the peaks of a machine's recorded runs, and save them; takes minutes."""
    peaks = _predictions(_comparable(recorded(machine)))
    rows = [{"config": dict(sorted(key)), "peak_gib": peak} for key, peak in peaks.items()]
    saved = {"torch": _torch_version(), "date": date.today().isoformat(), "peaks": rows}
    recordings.save(machine, {SAVED: saved})


def median_error(table: pd.DataFrame) -> float:
    """Return the median size of the errors, as a share of the measured peak."""
    return float(table["error"].abs().median())


def fit_predicted_correctly(table: pd.DataFrame) -> pd.Series:
    """Return for each run whether the prediction is right about fitting into `limit_gib`."""
    return (table["predicted_gib"] <= table["limit_gib"]) == (table["status"] == "ok")


def finished(runs: Iterable[Run] | pd.DataFrame) -> list[dict[str, Any]]:
    """Return the `rows_of` runs that have finished.

    Raises:
        ValueError: a run is queued or running.
    """
    records = rows_of(runs)
    if waiting := [row["status"] for row in records if row["status"] in ("queued", "running")]:
        raise ValueError(
            f"a run is still {waiting[0]}: wait(runs, check=False) first (check=False, because a "
            "run may end out of memory here)"
        )
    return records


def _comparable(runs: Iterable[Run] | pd.DataFrame) -> list[dict[str, Any]]:
    rows = [
        row
        for row in finished(runs)
        if row["status"] in ("ok", "oom")
        and row.get("memory_kind") == MEMORY_KIND
        and not row["config"].get("algebra")  # predictions are for PyTorch's operators
    ]
    if not rows:
        raise ValueError(
            f"none of these runs has a peak of the kind {MEMORY_KIND!r}, the only one that can be "
            f"predicted: choose runs on a GPU, such as recorded({MACHINE!r})"
        )
    return rows


def _key(config: Config) -> Key:
    if config.precision == "tf32":  # stored as fp32
        config = replace(config, precision="fp32")
    return frozenset(item for item in all_settings(config).items() if item[0] not in IGNORED)


def _predictions(rows: list[dict[str, Any]]) -> dict[Key, float]:
    configs = {_key(config): config for config in (from_dict(row["config"]) for row in rows)}
    predict = memory_prediction.predict_memory
    return {key: predict(config).peak_gib for key, config in configs.items()}


def _torch_version() -> str:
    return version("torch").partition("+")[0]


def _compare(rows: list[dict[str, Any]], peaks: dict[Key, float], predictor: str) -> pd.DataFrame:
    table = []
    for row in rows:
        config = from_dict(row["config"])
        device_gib = (row.get("hardware") or {}).get("device_gib", float("nan"))
        table.append(
            {
                "setting": _setting(config),
                **{name: getattr(config, name) for name in SETTINGS},
                "inputs": f"{config.data} data, {config.image_px} px",
                "status": row["status"],
                "measured_gib": row["peak_gib"] if row["status"] == "ok" else float("nan"),
                "predicted_gib": peaks[_key(config)],
                "limit_gib": config.memory_gib or device_gib,
                "machine": row["machine"],
                "predictor": predictor,
            }
        )
    table = pd.DataFrame(table).drop_duplicates()
    table["error"] = table["predicted_gib"] / table["measured_gib"] - 1
    table["format"] = table["precision"].map(CHOICES["precision"].index)
    order = ["model", "format", "channels_last", "compile", "fused", "batch_size"]
    return table.sort_values(order, ignore_index=True).drop(columns="format")


def _setting(config: Config) -> str:
    strategy = memory_prediction.memory_strategy(config)
    words = [config.precision, *["channels_last"] * config.channels_last]
    words += ["fused"] * config.fused + [strategy] * (strategy != memory_prediction.NO_STRATEGY)
    return ", ".join([*words, *["compiled"] * bool(config.compile)])
