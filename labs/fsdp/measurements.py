"""Measure what recorded sharded runs cost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from course import Run, recorded_runs
from course.analysis import communication, read_trace
from course.runs import recordings
from trainspeed import traces

# FSDP2's operators that copy shards into messages and out of them.
COPIES = r"fsdp::|aten::(?:split_with_sizes_copy|_chunk_cat|_foreach_copy_)"
CASTS = r"aten::(?:_to_copy|copy_|to)$"
TARGET_SPEED, TARGET_MEMORY = 0.8, 0.75  # the lab's goal, as shares of DDP's images/s and peak


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


def step_parts(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Split the mean traced step of each run on a GPU into parts, in ms: a column per run.

    step: from its first kernel to its last. computing: kernels other than NCCL's run; these
    include copies (of shards into messages and out of them) and casts. exposed: only NCCL runs.
    idle: no kernel runs.
    """
    return pd.DataFrame({name: _step_parts(read_trace(run)) for name, run in runs.items()})


def _step_parts(trace: traces.Trace) -> pd.Series:
    steps = traces.steps(trace)["step"]
    kernels = trace.kernels[trace.kernels["step"].isin(steps)]
    begin = kernels["start_s"].min()
    end = (kernels["start_s"] + kernels["duration_s"]).max()
    computing_s = traces.overlap_s((begin, end), communication.computing(trace))
    running_s = traces.overlap_s((begin, end), traces.merge_intervals(traces.intervals_of(kernels)))
    own_kernels = kernels[~kernels["kernel"].str.match(traces.NCCL).astype(bool)]

    def seconds_of(pattern: str) -> float:
        is_match = own_kernels["operator"].str.contains(pattern)
        return own_kernels.loc[is_match, "duration_s"].sum()

    parts = {
        "step": end - begin,
        "computing": computing_s,
        "copies": seconds_of(COPIES),
        "casts": seconds_of(CASTS),
        "exposed": running_s - computing_s,
        "idle": end - begin - running_s,
    }
    return pd.Series(parts) * 1e3 / len(steps)
