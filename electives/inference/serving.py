"""A server that answers requests in batches, simulated with measured times of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

StepTime = Callable[[int], float]  # the seconds that a batch of n requests takes
Serve = Callable[[Sequence[float], StepTime, int, float], list[float]]
SECONDS, MAX_REQUESTS = 4.0, 20_000  # of simulated arrivals


def serve(
    arrivals: Sequence[float], step_s: StepTime, max_batch: int, max_wait: float
) -> list[float]:
    """Return the latency of each request, in seconds, from its arrival to the end of its batch.

    A batch starts when the GPU is free and either max_batch requests wait or the oldest one has
    waited for max_wait seconds.

    Args:
        arrivals: seconds, ascending.
    """
    latencies, free, first = [], 0.0, 0
    while first < len(arrivals):
        last = first + max_batch - 1
        full = arrivals[last] if last < len(arrivals) else float("inf")
        start = max(free, min(full, arrivals[first] + max_wait))
        count = sum(arrival <= start for arrival in arrivals[first : first + max_batch])
        free = start + step_s(count)
        latencies += [free - arrival for arrival in arrivals[first : first + count]]
        first += count
    return latencies


def random_arrivals(per_s: float, seed: int = 0) -> list[float]:
    """Return random arrivals of independent users (a Poisson process), in seconds."""
    count = int(min(SECONDS * per_s, MAX_REQUESTS))
    gaps = np.random.default_rng(seed).exponential(1 / per_s, count)
    return np.cumsum(gaps).tolist()


def step_time(table: pd.DataFrame) -> StepTime:
    """Return the median time of a batch from a latency curve, interpolated between its batches."""
    table = table.sort_values("batch")
    batches, seconds = table["batch"].to_numpy(), table["p50_s"].to_numpy()
    return lambda count: float(np.interp(count, batches, seconds))


def latency_by_rate(
    serve: Serve,
    curves: Mapping[str, pd.DataFrame],
    rates: Iterable[float],
    max_batch: int,
    max_wait: float,
) -> pd.DataFrame:
    """Return the latency of several variants at several rates of requests.

    Columns: variant, per_s, p50_s, p99_s.
    """
    rows = []
    for name, curve in curves.items():
        step_s = step_time(curve)
        for per_s in rates:
            latencies = serve(random_arrivals(per_s), step_s, max_batch, max_wait)
            median, late = np.percentile(latencies, [50, 99])
            rows.append({"variant": name, "per_s": per_s, "p50_s": median, "p99_s": late})
    return pd.DataFrame(rows)
