"""How Slurm ends a job: its settings on this cluster, and a recorded measurement."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from course.jobs import slurm_partitions

RECORDED = Path(__file__).with_name("signals.jsonl")  # by research/slurm_signals.py


def recorded_signals() -> pd.DataFrame:
    """Return when a job that ignores SIGTERM got what, in seconds from the first SIGTERM."""
    return pd.read_json(RECORDED, lines=True).set_index("ended by")


def preemption_settings() -> pd.DataFrame:
    """Return PreemptMode, GraceTime and KillWait of each partition; no rows without Slurm."""
    config, partitions = (
        slurm_partitions.ask("scontrol", "--oneliner", "show", name)
        for name in ("config", "partition")
    )
    if not (config and partitions and config.stdout and partitions.stdout):
        return pd.DataFrame()
    wait = re.search(r"^KillWait\s*= (.+?)\s*$", config.stdout, re.MULTILINE)
    rows = {}
    for line in partitions.stdout.splitlines():
        values = dict(re.findall(r"(\w+)=(\S+)", line))
        rows[values["PartitionName"]] = {
            "PreemptMode": values.get("PreemptMode", ""),
            "GraceTime": f"{values.get('GraceTime', '?')} s",
            "KillWait": wait[1] if wait else "",
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("partition")
