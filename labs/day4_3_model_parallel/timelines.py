"""What the stages of a run did and when, beside what their order alone would give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from labs.day4_3_model_parallel import schedules
from labs.day4_3_model_parallel.schedules import COLUMNS, Order, Pass

if TYPE_CHECKING:
    from course.runs.run import Run


def timeline(run: Run) -> pd.DataFrame:
    """Every pass of one step of a pipeline, the shortest of those that were kept.

    Columns: rank, stage, micro_batch, what, begin_ms and end_ms since the step's first pass began.
    Ranks are joined by the time of day.

    Raises:
        ValueError: a run that had no stages.
    """
    steps = []
    for number in _noted(run)[0]:
        rows = [
            [rank, stage, micro_batch, what, 1e3 * begin, 1e3 * end]
            for rank, seen in enumerate(_noted(run))
            for what, stage, micro_batch, begin, end, *_ in seen[number]
        ]
        table = pd.DataFrame(rows, columns=COLUMNS)
        table[COLUMNS[-2:]] -= table["begin_ms"].min()
        steps.append(table)
    shortest = min(steps, key=lambda table: table["end_ms"].max())
    return shortest.sort_values(["rank", "begin_ms", "end_ms"], ignore_index=True)


def _noted(run: Run) -> list[dict[str, list]]:
    """Of each rank, the passes of its last steps, by the step's number."""
    found = [rank["evidence"].get("actions") for rank in run.ranks]
    if not found or not all(found):
        raise ValueError(f"{run} has no stages: launch with pipeline='1f1b', and 2 ranks or more")
    return found


def order_of(run: Run) -> Order:
    """What each rank did in its last step, one pass after the other."""
    last = [sorted(seen[max(seen, key=int)], key=lambda row: row[3]) for seen in _noted(run)]
    return [[Pass(*row[:3]) for row in rows] for rows in last]


def ideal_of(run: Run) -> pd.DataFrame:
    """The run's order, if its work were shared out evenly and sending took no time.

    The work is what a mean rank did in the step that `timeline` shows. Columns: those.
    """
    table, cfg = timeline(run), run.config
    ranks, micro_batches = run.record.gpus, micro_batches_of(run)
    due = schedules.ideal(cfg.pipeline, ranks, micro_batches)
    work, asked = ((each["end_ms"] - each["begin_ms"]).sum() for each in (table, due))
    return schedules.ideal(cfg.pipeline, ranks, micro_batches, forward_ms=work / asked)


def micro_batches_of(run: Run) -> int:
    """How many a step of the run has."""
    return run.config.batch_size // (run.config.micro_batch or run.config.batch_size)


def replay(run: Run) -> pd.DataFrame:
    """The run's order with its own times, on as many processors as ranks, if sending took none.

    Where ranks outnumber the processors they wait for those, and the clock tells nothing. So a pass
    takes as long as its process held a processor, on a GPU as long as it ran there: the median of
    its kind and stage. Columns: those of `timeline`.
    """
    medians = work(run)["ms"]
    return schedules.simulate(order_of(run), lambda one: medians[one.stage, one.what] / 1e3)


def work(run: Run) -> pd.DataFrame:
    """What a pass took: rows stage and what; columns rank and ms, the median of the kept steps."""
    is_cpu = run.record.device == "cpu"
    rows = [
        [rank, stage, what, 1e3 * (worked[0] if is_cpu and worked else end - begin)]
        for rank, seen in enumerate(_noted(run))
        for passes in seen.values()
        for what, stage, _, begin, end, *worked in passes
    ]
    table = pd.DataFrame(rows, columns=["rank", "stage", "what", "ms"])
    return table.groupby(["stage", "what"])[["rank", "ms"]].median().astype({"rank": int})


def bubbles(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Predicted, replayed and measured: a row a run.

    Columns: micro_batches; predicted, the idle share of the run's order with equal stages; with_own
    (that of its order with its own times); measured; step_ms of the step shown; in_flight, the most
    micro-batches of which a rank keeps activations.
    """
    return pd.DataFrame.from_dict({name: _bubble(run) for name, run in runs.items()}, "index")


def _bubble(run: Run) -> dict[str, float]:
    ranks, micro_batches = run.record.gpus, micro_batches_of(run)
    found = timeline(run)
    return {
        "micro_batches": micro_batches,
        "predicted": schedules.idle(ideal_of(run)),
        "with_own": schedules.idle(replay(run)),
        "measured": schedules.idle(found),
        "step_ms": found["end_ms"].max(),
        "in_flight": max(schedules.in_flight(run.config.pipeline, ranks, micro_batches)),
    }


def pipelines(runs: Mapping[str, Run]) -> pd.DataFrame:
    """The pipelines among recorded runs, few micro-batches first; what was not measured is NaN.

    Columns: micro_batches, images_per_s, predicted and measured (idle shares), peak_gib (of the
    rank that took most), status.
    """
    rows = {}
    piped = {name: run for name, run in runs.items() if run.config.pipeline}
    for name, run in sorted(piped.items(), key=lambda each: micro_batches_of(each[1])):
        is_ok = run.record.status == "ok"
        shown = _bubble(run) if is_ok else {}
        peaks = [rank.get("peak_gib") or np.nan for rank in run.ranks]
        rows[name] = {
            "micro_batches": micro_batches_of(run),
            "images_per_s": run.record.images_per_s if is_ok else np.nan,
            "predicted": shown.get("predicted", np.nan),
            "measured": shown.get("measured", np.nan),
            "peak_gib": max(peaks, default=np.nan) if is_ok else np.nan,
            "status": run.record.status,
        }
    return pd.DataFrame.from_dict(rows, "index")
