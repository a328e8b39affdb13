"""Compare recorded memory strategies."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from course import Run
from course.lab import NOT_APPLICABLE
from course.training import memory_prediction


def memory_strategies(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row for each run, the fastest first.

    Columns: strategy, batch_size (images per update), micro_batch (images per pass through the
    network), limit_gib (the run's memory limit; 0: none), status, images_per_s, peak_gib, kept_gib
    (what a pass keeps for backward; unknown if checkpointing selects by operator),
    joules_per_image, pass_s, error. What a run did not measure is NaN.
    """
    rows = []
    for run in runs:
        cfg, record = run.config, run.record
        micro_batch = cfg.micro_batch or cfg.batch_size
        measured = record.status == "ok"
        kept_gib = record.evidence.kept_gib
        is_kept_known = kept_gib is not NOT_APPLICABLE and cfg.checkpointing != "selective"
        row = {
            "strategy": memory_prediction.memory_strategy(cfg),
            "batch_size": cfg.batch_size,
            "micro_batch": micro_batch,
            "limit_gib": cfg.memory_gib,
            "status": record.status,
            "images_per_s": record.images_per_s if measured else math.nan,
            "peak_gib": record.peak_gib if measured else math.nan,
            "kept_gib": kept_gib if is_kept_known else math.nan,
            "joules_per_image": record.joules_per_image,
            "pass_s": math.nan,
            "error": record.error,
        }
        if record.step_s:
            row["pass_s"] = record.step_s / math.ceil(cfg.batch_size / micro_batch)
        rows.append(row)
    return pd.DataFrame(rows).sort_values("images_per_s", ascending=False, ignore_index=True)


def on_pareto_front(table: pd.DataFrame) -> pd.Series:
    """Mark the rows of `memory_strategies` that no other row beats in both speed and memory."""

    def is_unbeaten(row: pd.Series) -> bool:
        faster = table["images_per_s"] >= row["images_per_s"]
        return (faster & (table["peak_gib"] <= row["peak_gib"])).sum() == 1  # the row itself

    return table.apply(is_unbeaten, axis=1)
