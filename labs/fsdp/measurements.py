"""Measure what recorded sharded runs cost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from course import Run, recorded_runs
from course.analysis import read_trace
from course.runs import recordings

TARGET_SPEED, TARGET_MEMORY = 0.8, 0.75  # the lab's goal, as shares of DDP's images/s and peak
OFTEN = 10  # messages of one size: those of the blocks that are alike


def sharding_runs() -> dict[str, Run]:
    """Return the recorded runs of this lab on the most GPUs, by label."""
    runs = [run for machine in recordings.machines() for run in recorded_runs(machine, "sharding")]
    gpus = max(run.record.gpus for run in runs)
    return {run.config.rung: run for run in runs if run.record.gpus == gpus}


def compare_with_ddp(runs: Mapping[str, Run], model: str = "coatnet_5_224") -> pd.DataFrame:
    """Compare recorded runs of a model with DDP, without those that traced a step.

    Columns: precision ("bf16 policy": weights are gathered in bf16), images_per_s, of_ddp (the
    ratio), peak_gib, of_peak (the ratio), joules_per_image, images (per GPU), limit_gib (0: none),
    status, reached (the lab's goal). What a run did not measure is NaN.
    """
    rows = {}
    for name, run in runs.items():
        cfg, record = run.config, run.record
        if cfg.model != model or cfg.profile_steps:
            continue
        measured = record if record.status == "ok" else None
        rows[name] = {
            "precision": "bf16 policy" if cfg.gather_bf16 else "autocast",
            "images_per_s": getattr(measured, "images_per_s", np.nan),
            "peak_gib": getattr(measured, "peak_gib", np.nan),
            "joules_per_image": getattr(measured, "joules_per_image", np.nan),
            "images": cfg.batch_size // record.gpus,
            "limit_gib": cfg.memory_gib,
            "status": record.status,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    ddp = table.loc["ddp" if "ddp" in table.index else "resnet50-ddp"]
    table.insert(2, "of_ddp", table["images_per_s"] / ddp["images_per_s"])
    table.insert(4, "of_peak", table["peak_gib"] / ddp["peak_gib"])
    table["reached"] = (table["of_ddp"] >= TARGET_SPEED) & (table["of_peak"] <= TARGET_MEMORY)
    return table


def message_times(run: Run) -> pd.DataFrame:
    """Return how long a traced run's messages of each size took, if they were sent often.

    Rows: operation, megabytes that a rank puts in, phase. Columns: messages (their number),
    median_ms, which includes the wait for the slowest rank.
    """
    collectives = read_trace(run).collectives
    sent = collectives.assign(
        megabytes=(collectives["bytes"] / 1e6).round(1), ms=1e3 * collectives["duration_s"]
    )
    groups = sent.groupby(["operation", "megabytes", "phase"])["ms"]
    times = groups.agg(messages="size", median_ms="median")
    return times[times["messages"] >= OFTEN].round(2)
