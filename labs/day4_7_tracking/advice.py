"""Habits for work on a cluster, each with its command."""

from __future__ import annotations

import pandas as pd

HABITS = {
    "code that can be compared": (
        "training code is in .py files under git, not in cells",
        "git diff --no-index runs/FIRST/train.py runs/SECOND/train.py",
    ),
    "config as data": (
        "one named field per change; check a job before it waits for hours",
        "course run solutions/train.py --rung amp --set lr=0.02 --dry-run",
    ),
    "profile before you buy GPUs": (
        "a second GPU doubles what the first one wastes",
        "course run solutions/train.py --rung amp --set profile_steps=1 --set warmup_steps=4",
    ),
    "short time limits": (
        "a short job fits into gaps in the queue, and with checkpoints any job can be short",
        "sbatch --time=00:20:00 train.sh",
    ),
    "job arrays": (
        "many similar jobs in one submission; here 8, of which 4 run at a time",
        "sbatch --array=0-7%4 sweep.sh",
    ),
    "chained jobs": (
        "the second starts when the first has succeeded; if the first fails, it leaves the queue",
        "sbatch --dependency=afterok:$(sbatch --parsable train.sh) "
        "--kill-on-invalid-dep=yes test.sh",
    ),
    "tidy storage": (
        "records are small, so keep them; old weights can be trained again",
        "find runs -name '*.pt' -mtime +30 -exec du -sh {} +",
    ),
    "results to share": (
        "a record has everything needed to repeat the run; a screenshot does not",
        "course show FIRST --json > result.json",
    ),
}


def habits() -> pd.DataFrame:
    """Return habits: habit, why, command (for a shell in the project's folder)."""
    rows = [(name, why, command) for name, (why, command) in HABITS.items()]
    return pd.DataFrame(rows, columns=["habit", "why", "command"])
