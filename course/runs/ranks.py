"""What each rank of a run did and how it ended: where one waits, another has something to tell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from course.runs import failures, logs
from course.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

LOG_LINES = 500  # of a log's end, among which a hang is looked for: its report takes about 60


def rank_table(run: Run) -> pd.DataFrame:
    """List the ranks of a run: rank, host, device, status, finished steps, error message.

    If NCCL ended a rank, the message comes from its log once the run is over. A rank that ended
    before it could write its record has the status "" and no error.
    """
    import pandas as pd

    known = {each["rank"]: each for each in run.ranks}
    hung = hangs(run) if run.record else {}
    rows = []
    for rank in range(run.launched.get("gpus", 1)):
        in_log = {"status": "failed", "error": str(hung[rank])} if rank in hung else {}
        own = known.get(rank, in_log)
        device = (own.get("evidence") or {}).get("device", own.get("device") or "")
        rows.append(
            {
                "rank": rank,
                "host": own.get("host", ""),
                "device": device,
                "status": own.get("status", ""),
                "steps": len(run.rank_steps(rank)),
                "error": own.get("error", ""),
            }
        )
    return pd.DataFrame(rows).set_index("rank")


def hangs(run: Run) -> dict[int, failures.Hang]:
    """By rank, in order: in which collective NCCL's watchdog ended it, as its own log tells."""
    found = {}
    for path in run.logs:
        if task := re.search(r"_(\d+)_log\.err$", path.name):  # as submitit names them
            rank = int(task[1])
            found[rank] = failures.hang(logs.tail(path, LOG_LINES), rank)
    return {rank: found[rank] for rank in sorted(found) if found[rank]}
