"""The networks on this machine: a small benchmark, and a step to time by yourself."""

from __future__ import annotations

import pandas as pd
import torch

from course.topics.networks import bench
from course.topics.networks.catalogue import NETWORKS
from course.topics.networks.written import Step

COLUMNS = ["network", "precision", "images_per_s", "images_per_s_q1", "images_per_s_q3", "ratio"]


def measured_here(quick: bool = True) -> pd.DataFrame:
    """Each network's training in each precision that this machine has units for.

    Columns: network, precision, images_per_s with quartiles, ratio (to fp32), computed_in (how
    many convolutions and products gave which format), machine. Steps are written to `log_file`.
    """
    log, rows = bench.log_file(), []
    for name in NETWORKS:
        base = bench.base(name, quick)
        for setting in bench.settings(base, precision=bench.precisions()):
            rows.append(bench.bench(setting, log))
    table = pd.DataFrame(rows)
    first = table.groupby("network")["images_per_s"].transform("first")
    given = [", ".join(f"{n} × {kind}" for kind, n in each.items()) for each in table["formats"]]
    table = table.assign(ratio=table["images_per_s"] / first, computed_in=given)
    return table[[*COLUMNS, "computed_in", "machine"]]


def stepping(network: str = "resnet50", precision: str = "fp32") -> tuple[Step, Step]:
    """A small training's `step()`, which queues its work, and `wait()`, until all is done."""
    place = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    work = bench.Work(bench.base(network, quick=True, precision=precision), place)

    def wait() -> None:
        if place.type != "cpu":  # a processor queues nothing
            torch.accelerator.synchronize(place)

    return work.step, wait
