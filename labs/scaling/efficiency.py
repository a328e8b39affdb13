"""Compare how training scales over GPUs: measured, and predicted for a node of eight.

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
from course.runs import recordings
from labs.scaling.configs import IMAGES_PER_GPU

FREE_FIELDS = ("rung", "data_root", "batch_size", "bucket_mb", "collective_timeout_s", "hosts")
NODE = "nvidia-h200-x8"
GPUS = 8  # of a node
HERE = Path(__file__).parent


def mean_step_s(run: Run) -> float:
    """Return the mean seconds of a step after warm-up, which a few late steps make longer.

    A median would leave them out, although all ranks wait for them.
    """
    return float(run.steps.query(f"step >= {run.config.warmup_steps}")["step_s"].mean())


def efficiency_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Compare runs on several GPUs with one GPU that has as many images.

    Columns: rung, gpus, hosts, images_per_gpu (per step); step_ms and median_ms; images_per_s and
    efficiency, both of the mean step (NaN without a run on one GPU); watts of all GPUs together
    (NaN if not measured; a rank without its own counts as rank 0), joules_per_image; machine, run.
    """
    runs = list(runs)
    table = pd.DataFrame([_efficiency_row(run, single_gpu_run(run, runs)) for run in runs])
    return table.sort_values(["rung", "images_per_gpu", "gpus", "hosts"], ignore_index=True)


def _efficiency_row(run: Run, base: Run | None) -> dict[str, Any]:
    record, gpus, step_s = run.record, run.record.gpus, mean_step_s(run)
    speed = run.config.batch_size / step_s
    rank_watts = [rank.get("watts") for rank in run.ranks]
    known = len(rank_watts) == gpus and None not in rank_watts
    watts = sum(rank_watts) if known else gpus * (record.watts or math.nan)
    return {
        "rung": run.config.rung,
        "gpus": gpus,
        "hosts": run.config.hosts,
        "images_per_gpu": run.config.batch_size // gpus,
        "step_ms": 1e3 * step_s,
        "median_ms": 1e3 * record.step_s,
        "images_per_s": speed,
        "efficiency": mean_step_s(base) / step_s if base else math.nan,
        "watts": watts,
        "joules_per_image": watts / speed,
        "machine": record.machine,
        "run": run.name,
    }


def single_gpu_run(run: Run, runs: Iterable[Run]) -> Run | None:
    """Find the run on one GPU of the same machine with the same config and images per GPU."""
    wanted = _work_per_gpu(run)
    singles = (run_ for run_ in runs if run_.record.gpus == 1)
    return next((single for single in singles if _work_per_gpu(single) == wanted), None)


def _work_per_gpu(run: Run) -> dict[str, Any]:
    config = {key: value for key, value in asdict(run.config).items() if key not in FREE_FIELDS}
    machine = run.record.machine.partition(" (recorded")[0]  # without the day
    return config | {"images": run.config.batch_size / run.record.gpus, "machine": machine}


def scaling_runs(machine: str) -> list[Run]:
    """List a machine's recorded runs on one GPU and on several, on synthetic images."""
    runs = recorded_runs(machine, "scaling") if machine in recordings.machines() else []
    return [run for run in runs if run.status == "ok" and run.config.data == "synthetic"]


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
    runs = scaling_runs(machine)
    if not runs:
        return pd.DataFrame(columns=["rung"])
    table = efficiency_table(runs)
    full = (table["gpus"] == GPUS) & (table["images_per_gpu"] == IMAGES_PER_GPU)
    return table[full].reset_index(drop=True)
