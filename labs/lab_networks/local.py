"""The networks on this machine: a small benchmark."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd

from course.analysis.timing import number_format
from course.training.clocks import speed_quartiles
from course.training.recorder import Recorder
from labs.lab_networks import bench
from labs.lab_networks.catalogue import NETWORKS

MIN_TURNS = 3
# On a GPU at full size, where a turn takes up to 0.7 s: the published 400 would take 7 minutes.
FULL_SIZE_TURNS = {"warmup": 5, "iterations": 15}


def benchmark_here(quick: bool = True) -> pd.DataFrame:
    """Time each network's training in each precision that this machine has units for.

    Precisions take turns, one step each, so that other programs disturb all of them equally.

    Columns: network, precision, images_per_s, ratio (to fp32 in the same turn) with quartiles,
    computed_in (the number of products by format), machine.
    """
    on_cpu = quick or bench.device_of().type == "cpu"
    turns = {} if on_cpu else FULL_SIZE_TURNS
    tables = [_benchmark(bench.base_setting(name, quick, **turns)) for name in NETWORKS]
    return pd.concat(tables, ignore_index=True)


def _benchmark(base: bench.Setting) -> pd.DataFrame:
    device = bench.device_of()
    settings = bench.combinations(base, precision=bench.precisions())
    workloads = [bench.Workload(setting, device) for setting in settings]
    formats = [workload.count_formats() for workload in workloads]
    count = base.warmup + max(MIN_TURNS, base.iterations)
    turns = np.array([[_time_step(workload) for workload in workloads] for _ in range(count)])
    turns = turns[base.warmup :]  # [turn, precision]
    ratios = np.percentile(turns[:, :1] / turns, [50, 25, 75], axis=0)
    speeds = [speed_quartiles(times, base.batch)["images_per_s"] for times in turns.T]
    columns = {
        "network": base.network,
        "precision": [setting.precision for setting in settings],
        "images_per_s": speeds,
        **dict(zip(("ratio", "ratio_q1", "ratio_q3"), ratios)),
        "computed_in": [", ".join(f"{n} × {kind}" for kind, n in f.items()) for f in formats],
        "machine": Recorder(None).describe(device)["machine"],
    }
    return pd.DataFrame(columns)


def _time_step(workload: bench.Workload) -> float:
    with number_format(workload.device, workload.setting.precision):
        begin = time.perf_counter()
        workload.step()
        workload.wait()
        return time.perf_counter() - begin
