"""The state of each rank of a run; if one rank waits, a different one has the error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from course.runs import failures
from course.runs.files import tail
from course.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

LOG_LINES = 500  # to search for a hang; NCCL's report has about 60 lines


def rank_table(run: Run) -> pd.DataFrame:
    """Return a table with one row per rank: rank, host, device, status, finished steps, error.

    If NCCL ended a rank of a finished run, the error is from its log. A rank that was killed before
    it could record anything has the status "" and no error.
    """
    import pandas as pd

    reports = {rank: {"status": "failed", "error": str(hang)} for rank, hang in hangs(run).items()}
    reports = reports if run.record else {}
    reports |= {report["rank"]: report for report in run.ranks}
    rows = []
    for rank in range(run.gpus):
        report = reports.get(rank, {})
        device = (report.get("evidence") or {}).get("device", report.get("device") or "")
        rows.append(
            {
                "rank": rank,
                "host": report.get("host", ""),
                "device": device,
                "status": report.get("status", ""),
                "steps": len(run.rank_steps(rank)),
                "error": report.get("error", ""),
            }
        )
    return pd.DataFrame(rows).set_index("rank")


def hangs(run: Run) -> dict[int, failures.Hang]:
    """Return the hangs of a run by rank, sorted, from the ranks' logs."""
    result = {}
    for path in run.logs:
        if task := re.search(r"_(\d+)_log\.err$", path.name):  # JOB_RANK_log.err
            rank = int(task[1])
            result[rank] = failures.hang(tail(path, LOG_LINES), rank)
    return {rank: result[rank] for rank in sorted(result) if result[rank]}
