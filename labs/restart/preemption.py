"""How Slurm ends a job: its settings on this cluster, and a recorded measurement."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from course.jobs import slurm_partitions

RECORDED = Path(__file__).with_name("signals.jsonl")  # by research/slurm_signals.py
CLUSTER_SETTINGS = ("KillWait", "JobRequeue", "PreemptParameters")


def recorded_signals() -> pd.DataFrame:
    """Return when a job that ignores SIGTERM got what, in seconds from the first SIGTERM."""
    return pd.read_json(RECORDED, lines=True).set_index("ended by")


def preemption_settings() -> pd.DataFrame:
    """Return what decides how each partition preempts its jobs; no rows without Slurm.

    Columns: PreemptMode and GraceTime of the partition; KillWait, JobRequeue and PreemptParameters
    of the cluster.
    """
    config, partitions = (
        slurm_partitions.ask("scontrol", "--oneliner", "show", name)
        for name in ("config", "partition")
    )
    if not (config and partitions and config.stdout and partitions.stdout):
        return pd.DataFrame()
    cluster = dict(re.findall(r"^(\w+)\s*= (.+?)\s*$", config.stdout, re.MULTILINE))
    shared = {name: cluster.get(name, "") for name in CLUSTER_SETTINGS}
    rows = {}
    for line in partitions.stdout.splitlines():
        values = dict(re.findall(r"(\w+)=(\S+)", line))
        settings = {
            "PreemptMode": values.get("PreemptMode", ""),
            "GraceTime": f"{values.get('GraceTime', '?')} s",
        }
        rows[values["PartitionName"]] = settings | shared
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("partition")
