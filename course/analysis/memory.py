"""Peaks that `predict` predicts next to peaks that runs measured: how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from course.analysis.run_rows import finished
from course.config import CHOICES, Config, from_dict
from course.runs import recordings
from course.runs.run import Run
from course.training.memory import total_gib
from course.training.memory_prediction import predict

MACHINE = "nvidia-h100"
SAVED = "predicted"  # in a machine's index: predictions for its recorded runs
PURPOSE = "memory"  # runs recorded for this purpose are predicted, too
COUNTED = "device allocator"  # the kind of measured peak that can be predicted
SETTINGS = ("batch_size", "model", "precision", "channels_last", "fused", "compile")
# Of a config, what its prediction does not depend on.
IGNORED = {
    "rung",
    "data_root",
    "epochs",
    "steps",
    "warmup_steps",
    "profile_steps",
    "val_steps",
    "workers",
    "uint8",  # of files; and what is predicted is on synthetic data
    "lr",
    "weight_decay",
    "seed",
    "memory_gib",
    "fused",
    "compile",
}

__all__ = [
    "fit_predicted_correctly",
    "median_error",
    "of_recorded",
    "predict",
    "predicted",
    "save",
    "total_gib",
    "way_of",
]

WAYS = {
    "every": "every block again",
    "second": "every second block again",
    "selective": "all but products again",
}
PLAIN = "all kept"


def way_of(config: Config) -> str:
    """How a config trades time for memory, in words; `PLAIN` where it does not."""
    said = [WAYS[config.checkpointing]] if config.checkpointing else []
    said += ["kept on the host"] * config.offload
    if config.micro_batch and config.micro_batch < config.batch_size:
        said.append(f"{config.micro_batch} at once")
    return ", ".join(said) or PLAIN


Key = frozenset[tuple[str, Any]]  # of all that a prediction depends on: (field, value)


def predicted(runs: Iterable[Run] | pd.DataFrame) -> pd.DataFrame:
    """Runs on a GPU beside what `predict` says of them here, some seconds for each config.

    One row for each run that ended ok or out of memory; runs that are alike in all columns are
    one row. Columns: setting (in words), batch_size, model, precision, channels_last,
    fused, compile, inputs, status, measured_gib (NaN for a run that ran out of memory: it never
    reached its peak), predicted_gib, error (predicted over measured, minus 1), reserved_gib (what
    the allocator had taken from the device), limit_gib (what the run could have had; NaN: not
    recorded), machine, and predictor, the PyTorch version of the prediction.

    Args:
        runs: runs that are over, or a table of records as `recorded` returns.

    Raises:
        ValueError: a run that is not over, or none that measured a device's allocator.
    """
    compared = _comparable(runs)
    return _beside(compared, _predict(compared), _torch())


def of_recorded(machine: str = MACHINE, purpose: str = "") -> pd.DataFrame:
    """As `predicted`, for the recorded runs on synthetic data, with the predictions saved there.

    Args:
        purpose: of runs that were recorded for it alone; "": of the ladder's.

    Raises:
        ValueError: nothing was recorded there, or a run has no saved prediction.
    """
    compared = _comparable(_recorded(machine, purpose))
    saved = recordings.load(machine).get(SAVED, {"torch": "", "peaks": []})
    known = {_key(from_dict(each["config"])): each["peak_gib"] for each in saved["peaks"]}
    for config in (from_dict(row["config"]) for row in compared):
        if _key(config) not in known:
            raise ValueError(
                f"no prediction is saved for {config.rung}, {config.setup}, which {machine} "
                f"recorded: predict again by course.analysis.memory.save({machine!r})"
            )
    return _beside(compared, known, saved["torch"])


def save(machine: str = MACHINE) -> None:
    """Predict the peaks of a machine's recorded runs again, and save them; takes minutes."""
    known = _predict(_comparable(_recorded(machine, "")))
    if runs := recordings.recorded_runs(machine, PURPOSE):
        known |= _predict(_comparable(runs))
    peaks = [{"config": dict(sorted(key)), "peak_gib": peak} for key, peak in known.items()]
    saved = {"torch": _torch(), "date": date.today().isoformat(), "peaks": peaks}
    recordings.save(machine, {SAVED: saved})


def median_error(table: pd.DataFrame) -> float:
    """The median of the errors' sizes, over the runs that fitted, as a share of the measured."""
    return float(table["error"].abs().median())


def fit_predicted_correctly(table: pd.DataFrame) -> pd.Series:
    """Whether, for each run, the prediction was right about fitting into `limit_gib`."""
    return (table["predicted_gib"] <= table["limit_gib"]) == (table["status"] == "ok")


def _recorded(machine: str, purpose: str) -> pd.DataFrame | list[Run]:
    return recordings.recorded_runs(machine, purpose) if purpose else recordings.recorded(machine)


def _comparable(runs: Iterable[Run] | pd.DataFrame) -> list[dict[str, Any]]:
    found = [
        row
        for row in finished(runs)
        if row["status"] in ("ok", "oom")
        and row.get("memory_kind") == COUNTED
        and not row["config"].get("algebra")  # predictions are of PyTorch's form
    ]
    if not found:
        raise ValueError(
            f"none of these runs has a peak of the kind {COUNTED!r}, which is what is predicted: "
            f"choose runs on a GPU, such as recorded({MACHINE!r}); on a CPU the whole process is "
            f"measured"
        )
    return found


def _key(config: Config) -> Key:
    if config.precision == "tf32":  # tensors stay fp32 in memory
        config = replace(config, precision="fp32")
    return frozenset((name, value) for name, value in vars(config).items() if name not in IGNORED)


def _predict(compared: list[dict[str, Any]]) -> dict[Key, float]:
    configs = {_key(config): config for config in (from_dict(row["config"]) for row in compared)}
    return {key: predict(config).peak_gib for key, config in configs.items()}


def _torch() -> str:
    return version("torch").partition("+")[0]


def _beside(compared: list[dict[str, Any]], known: dict[Key, float], by: str) -> pd.DataFrame:
    table = []
    for row in compared:
        config = from_dict(row["config"])
        measured = row["peak_gib"] if row["status"] == "ok" else np.nan
        had = config.memory_gib or (row.get("hardware") or {}).get("device_gib", np.nan)
        table.append(
            {
                "setting": _setting(config),
                **{name: getattr(config, name) for name in SETTINGS},
                "inputs": f"{config.data} data, {config.image_px} px",
                "status": row["status"],
                "measured_gib": measured,
                "predicted_gib": known[_key(config)],
                "error": known[_key(config)] / measured - 1,
                "reserved_gib": row["reserved_gib"],
                "limit_gib": had,
                "machine": row["machine"],
                "predictor": by,
            }
        )
    found = pd.DataFrame(table).drop_duplicates()
    order = ["model", "precision", "channels_last", "compile", "fused", "batch_size"]
    return found.sort_values(order, key=_by_format, ignore_index=True)


def _by_format(column: pd.Series) -> pd.Series:
    return column.map(CHOICES["precision"].index) if column.name == "precision" else column


def _setting(config: Config) -> str:
    words = [config.precision]
    words += ["channels_last"] * config.channels_last + ["fused"] * config.fused
    words += [] if (way := way_of(config)) == PLAIN else [way]
    return ", ".join([*words, *(["compiled"] if config.compile else [])])
