"""The networks on this machine: a small benchmark, and a step to time by yourself."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import torch

from course.analysis.roofline.timing import number_format
from course.training.clocks import speed_quartiles
from course.training.recorder import Recorder
from labs.lab_networks import bench
from labs.lab_networks.catalogue import NETWORKS
from labs.lab_networks.verify import Step

FEWEST = 5  # turns
# On a GPU at full size, where a turn takes up to 0.7 s: the published 400 would take 7 minutes.
FULL_SIZE_TURNS = {"warmup": 5, "iterations": 15}


def measured_here(quick: bool = True) -> pd.DataFrame:
    """Each network's training in each precision that this machine has units for.

    Precisions take turns, a step each: what else the machine does meets all of them alike.

    Columns: network, precision, images_per_s, ratio (to fp32 in the same turn) with quartiles,
    computed_in (how many convolutions and products gave which format), machine.
    """
    place = bench.device_of()
    turns = {} if quick or place.type == "cpu" else FULL_SIZE_TURNS
    tables = [_in_turns(bench.base(name, quick, **turns), place) for name in NETWORKS]
    return pd.concat(tables, ignore_index=True)


def _in_turns(base: bench.Setting, place: torch.device) -> pd.DataFrame:
    settings = bench.settings(base, precision=bench.precisions())
    works = [bench.Work(each, place) for each in settings]
    given = [work.evidence()["formats"] for work in works]
    count = base.warmup + max(FEWEST, base.iterations)
    turns = np.array([[_seconds(work, place) for work in works] for _ in range(count)])
    turns = turns[base.warmup :]  # [turn, precision]
    ratios = np.percentile(turns[:, :1] / turns, [50, 25, 75], axis=0)
    speeds = [speed_quartiles(each, base.batch)["images_per_s"] for each in turns.T]
    columns = {
        "network": base.network,
        "precision": [each.precision for each in settings],
        "images_per_s": speeds,
        **dict(zip(("ratio", "ratio_q1", "ratio_q3"), ratios)),
        "computed_in": [", ".join(f"{n} × {kind}" for kind, n in each.items()) for each in given],
        "machine": Recorder(None).describe(place)["machine"],
    }
    return pd.DataFrame(columns)


def _seconds(work: bench.Work, place: torch.device) -> float:
    with number_format(place, work.setting.precision):
        begin = time.perf_counter()
        work.step()
        _wait(place)
        return time.perf_counter() - begin


def stepping(network: str = "resnet50", precision: str = "fp32") -> tuple[Step, Step]:
    """A small training's `step()`, which queues its work, and `wait()`, until all is done."""
    place = bench.device_of()
    work = bench.Work(bench.base(network, quick=True, precision=precision), place)
    return work.step, lambda: _wait(place)


def _wait(place: torch.device) -> None:
    if place.type != "cpu":  # a processor queues nothing
        torch.accelerator.synchronize(place)
