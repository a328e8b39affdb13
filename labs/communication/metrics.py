"""What it costs to add up the counts of a metric over ranks: collectives and time."""

from __future__ import annotations

import time
from statistics import median

import pandas as pd
import torch
from torch import distributed
from torch.profiler import profile
from torchmetrics.classification import MulticlassAccuracy

from course.analysis import on_ranks

REPEATS = 100


def compare_metrics() -> pd.DataFrame:
    """Measure three ways of adding up counts over two processes.

    Columns: collectives; ms, the median of many.
    """
    return on_ranks(_measure, 2)[0]


def _measure(rank: int, ranks: int) -> pd.DataFrame:
    accuracy, totals = MulticlassAccuracy(16, average="micro"), torch.zeros(3)
    ways = {
        "torchmetrics' accuracy": accuracy.compute,
        "an all-reduce for each of three": lambda: [*map(distributed.all_reduce, totals.split(1))],
        "one all-reduce for all three": lambda: distributed.all_reduce(totals),
    }
    rows = {}
    for name, join in ways.items():
        seconds = []
        for _ in range(REPEATS):
            accuracy.update(torch.eye(16), torch.arange(16))  # without it, the old result returns
            distributed.barrier()
            begin = time.perf_counter()
            join()
            seconds.append(time.perf_counter() - begin)
        accuracy.update(torch.eye(16), torch.arange(16))
        with profile() as traced:
            join()
        collectives = sum(event.name.startswith("c10d::") for event in traced.events())
        rows[name] = {"collectives": collectives, "ms": 1e3 * median(seconds)}
    return pd.DataFrame.from_dict(rows, orient="index")
