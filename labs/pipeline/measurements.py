"""Compare the recorded pipelines."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from course import Run
from labs.pipeline.schedules import (
    ideal_step_of,
    idle_share,
    measured_step,
    micro_batch_count,
)


def compare_pipelines(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Compare the pipelines among runs: their bubble, and how long their ranks were idle.

    Columns: micro_batches, bubble (the idle share with equal stages), idle (the measured share).
    """
    rows = {
        name: {
            "micro_batches": micro_batch_count(run),
            "bubble": idle_share(ideal_step_of(run)),
            "idle": idle_share(measured_step(run)),
        }
        for name, run in runs.items()
        if run.config.pipeline and run.record.status == "ok"
    }
    return pd.DataFrame.from_dict(rows, "index")
