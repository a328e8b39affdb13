"""Links between ranks: all-reduces measured by size, here and on recorded machines."""

from __future__ import annotations

import pandas as pd

from course.config import rung
from course.jobs.launch import launch
from course.runs import recordings

SCRIPT = "course/analysis/all_reduce.py"


def measure_link(site: str = "local") -> pd.DataFrame:
    """Measure all-reduces between two processes on the CPUs of a site.

    Columns: ranks, hosts, bytes of each rank, seconds (the median), low and high (quartiles).
    """
    run = launch(SCRIPT, rung("baseline", quick=True, rung="link"), site=site, gpus=2).wait()
    table = pd.read_json(run.folder / "all_reduce.jsonl", lines=True)
    table["low"], table["seconds"], table["high"] = zip(*table["seconds"])
    return table


def recorded_links(machine: str) -> dict[str, pd.DataFrame]:
    """Return a machine's recorded all-reduces by the ranks and simulated hosts, as `measure_link`.

    Raises:
        ValueError: no links are recorded there; the message names the machines that have them.
    """
    table = recordings.recorded_table(machine, "links")
    return {
        f"{ranks} GPUs, {hosts} host{'s' * (hosts > 1)}": rows.reset_index(drop=True)
        for (ranks, hosts), rows in table.groupby(["ranks", "hosts"])
    }
