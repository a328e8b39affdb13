"""Compare how training scales over GPUs: measured, published, and predicted for a node of eight.

predicted_x8.json was written before a node of eight was measured, with its date and the recorded
runs that it was fitted to. research/predict_node.py computes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from course import Run, recorded_runs
from course.runs import ratio, recordings
from labs.dataloader.loading import trials
from labs.scaling.configs import IMAGES_PER_GPU

FREE_FIELDS = ("rung", "data_root", "batch_size", "bucket_mb", "collective_timeout_s", "hosts")
NODE = "nvidia-h200-x8"
GPUS = 8  # of a node
HERE = Path(__file__).parent


def efficiency_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Compare runs on several GPUs with one GPU that has as many images.

    Columns: rung, gpus, hosts, images_per_gpu (per step), images_per_s; efficiency, with the
    95 % interval of `ratio` in _low and _high (NaN without a run on one GPU); watts of all GPUs
    together (NaN if not measured; a rank without its own counts as rank 0), joules_per_image;
    step_s, machine, run.

    If files are loaded, images_per_s is that of all steps together, without an interval: batches
    arrive in bursts, which a median hides.
    """
    runs = list(runs)
    table = pd.DataFrame([_efficiency_row(run, single_gpu_run(run, runs)) for run in runs])
    return table.sort_values(["images_per_gpu", "gpus"], ignore_index=True)


def _efficiency_row(run: Run, base: Run | None) -> dict[str, Any]:
    record, gpus, speed = run.record, run.record.gpus, _images_per_s(run)
    value, low, high = _speedup(run, base) if base else (math.nan,) * 3
    rank_watts = [rank.get("watts") for rank in run.ranks]
    known = len(rank_watts) == gpus and None not in rank_watts
    watts = sum(rank_watts) if known else gpus * (record.watts or math.nan)
    return {
        "rung": run.config.rung,
        "gpus": gpus,
        "hosts": run.config.hosts,
        "images_per_gpu": run.config.batch_size // gpus,
        "images_per_s": speed,
        "efficiency": value / gpus,
        "efficiency_low": low / gpus,
        "efficiency_high": high / gpus,
        "watts": watts,
        "joules_per_image": watts / speed,
        "step_s": record.step_s,
        "machine": record.machine,
        "run": run.name,
    }


def _speedup(run: Run, base: Run) -> tuple[float, float, float]:
    """Return how many times as fast a run is, and the ends of the 95 % interval, or NaN."""
    if run.config.data != "synthetic":
        return _images_per_s(run) / _images_per_s(base), math.nan, math.nan
    speedup = ratio(run, base)
    return tuple(value or math.nan for value in (speedup.value, speedup.low, speedup.high))


def _images_per_s(run: Run) -> float:
    if run.config.data == "synthetic":
        return run.record.images_per_s
    return float(trials([run])["images_per_s"][0])


def single_gpu_run(run: Run, runs: Iterable[Run]) -> Run | None:
    """Find the run on one GPU of the same machine with the same config and images per GPU."""
    wanted = _work_per_gpu(run)
    singles = (run_ for run_ in runs if run_.record.gpus == 1)
    return next((single for single in singles if _work_per_gpu(single) == wanted), None)


def _work_per_gpu(run: Run) -> dict[str, Any]:
    config = {key: value for key, value in asdict(run.config).items() if key not in FREE_FIELDS}
    machine = run.record.machine.partition(" (recorded")[0]  # without the day
    return config | {"images": run.config.batch_size / run.record.gpus, "machine": machine}


def scaling_runs(machine: str, rung: str = "channels_last") -> list[Run]:
    """List a machine's recorded runs of one rung, on one GPU and on several.

    If none on several GPUs was recorded, print that and return an empty list.
    """
    runs = [run for run in _recorded(machine, "scaling") if run.config.rung == rung]
    if not any(run.record.gpus > 1 for run in runs):
        print(f"{machine}: {rung} on several GPUs is not recorded yet.")
        return []
    return runs


def _recorded(machine: str, purpose: str) -> list[Run]:
    runs = recorded_runs(machine, purpose) if machine in recordings.machines() else []
    return [run for run in runs if run.record.status == "ok"]


def published_efficiencies() -> pd.DataFrame:
    """Read published scaling efficiencies of ResNet-50 on ImageNet, each with its source.

    Columns: who, date, gpus, device, network, efficiency, against_gpus (empty: unknown), source.
    """
    return pd.read_csv(HERE / "scaling_published.csv")


def node_prediction() -> dict[str, Any]:
    """Read the prediction for a node of eight GPUs.

    Keys: date, device, gpus, images_each; fitted_to, names of recorded runs by machine;
    replaced_run, values of a run that was recorded again since; rungs, a list of dicts with rung,
    alone_images_per_s (of one GPU), own_ms (DDP's own work), exposed_ms (sent after backward),
    images_per_s, efficiency. All numbers but exposed_ms also have _low and _high.
    """
    return json.loads((HERE / "predicted_x8.json").read_text())


def node_efficiency(machine: str = NODE) -> pd.DataFrame:
    """Return the rows of `efficiency_table` for all GPUs of a node with 256 images on each.

    Empty if no node is recorded.
    """
    runs = _recorded(machine, "scaling")
    if not runs:
        return pd.DataFrame(columns=["rung"])
    table = efficiency_table(runs)
    full = (table["gpus"] == GPUS) & (table["images_per_gpu"] == IMAGES_PER_GPU)
    return table[full].reset_index(drop=True)


def node_with_prediction(rung: str, machine: str = NODE) -> pd.DataFrame:
    """Join a rung's row of `node_efficiency` with its prediction, in columns predicted_*.

    Empty if no node is recorded.
    """
    predicted = pd.DataFrame(node_prediction()["rungs"]).add_prefix("predicted_")
    measured = node_efficiency(machine).query("rung == @rung")
    return measured.merge(predicted, left_on="rung", right_on="predicted_rung")
