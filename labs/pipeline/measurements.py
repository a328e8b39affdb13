"""Compare the recorded pipelines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from course import Run
from labs.pipeline.schedules import compare_idle_shares, micro_batch_count


def compare_pipelines(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Compare the pipelines among recorded runs, by their number of micro-batches.

    Columns: micro_batches, images_per_s, predicted and measured (idle shares), peak_gib (of the
    rank with the highest), status. What a run did not measure is NaN.
    """
    pipelines = {name: run for name, run in runs.items() if run.config.pipeline}
    idle = compare_idle_shares({n: r for n, r in pipelines.items() if r.record.status == "ok"})
    rows = {}
    for name, run in pipelines.items():
        measured = run.record.status == "ok"
        rows[name] = {
            "micro_batches": micro_batch_count(run),
            "images_per_s": run.record.images_per_s if measured else np.nan,
            "predicted": idle["predicted"].get(name, np.nan),
            "measured": idle["measured"].get(name, np.nan),
            "peak_gib": max(rank["peak_gib"] for rank in run.ranks) if measured else np.nan,
            "status": run.record.status,
        }
    return pd.DataFrame.from_dict(rows, "index").sort_values("micro_batches", kind="stable")
