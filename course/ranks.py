"""What each rank of a run did and how it ended: where one waits, another has something to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from course.runs import Run


def told(run: Run) -> pd.DataFrame:
    """One row a rank: rank, host, device, status, steps that it finished, error in its own words.

    A rank that was ended before it could write what it knew has the status "" and no error.
    """
    import pandas as pd

    known = {each["rank"]: each for each in run.ranks}
    rows = []
    for rank in range(run.launched.get("gpus", 1)):
        own = known.get(rank, {})
        device = (own.get("evidence") or {}).get("device", own.get("device") or "")
        rows.append({
            "rank": rank, "host": own.get("host", ""), "device": device,
            "status": own.get("status", ""), "steps": len(run.rank_steps(rank)),
            "error": own.get("error", ""),
        })  # fmt: skip
    return pd.DataFrame(rows).set_index("rank")
