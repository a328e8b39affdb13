"""Predict the speed of a node's eight GPUs, from recorded runs on one, two and four.

    python -m research.predict_node     # prints rungs of labs/scaling/predicted_x8.json

A step on eight GPUs consists of one GPU's step, DDP's overhead, and messages that are still sent
after backward. The first two are recorded, the third is from `labs.scaling.model`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from course.analysis import communication as report
from course.runs import recordings
from course.runs.ratio import ratio
from course.runs.record import Record
from course.runs.run import Run
from labs.scaling.configs import IMAGES_PER_GPU
from labs.scaling.efficiency import GPUS, node_prediction
from labs.scaling.model import Link, config_buckets, exposed_s
from research.link_fit import fit_link
from tools.pages import ladder_of

FITTED = "nvidia-h200-x4"  # where rungs were recorded on one, two and four
OTHER_HOST = "nvidia-h200-x2"  # and one of them was recorded on two
ALONE, OLDER = "nvidia-h200", "nvidia-h100"
SCALED = ("channels_last", "compile")  # recorded there
OLD = "algebra"  # recorded only on one older GPU
Ladder = dict[tuple[str, str], Record]  # by rung and precision


class Span(NamedTuple):
    """A most likely value, and the limits of its interval."""

    best: float
    low: float
    high: float


@dataclass(frozen=True)
class _Step:
    """A rung on one GPU, and what several add to its step.

    Attributes:
        alone_s: time of its step.
        backward: the share of it that is backward.
        ddp_s: the overhead of DDP.
    """

    alone_s: Span
    backward: float
    ddp_s: Span


def fitted(names: dict[str, list[str]], older: dict[str, Any]) -> pd.DataFrame:
    """Predict the training speed of eight H200s, 256 images on each: a row per rung.

    Columns: rung, alone_images_per_s (of one GPU), own_ms (DDP's own work), exposed_ms (sent after
    backward), images_per_s, efficiency; each but exposed_ms followed by _low and _high.

    The limits of the intervals: one GPU as fast as the fastest or slowest recorded one. DDP's
    overhead as short as in any recorded run on several GPUs, or the longest one, growing from four
    to eight GPUs as from two to four. The link at the limits of its interval.

    Args:
        names: of recorded runs, by machine: FITTED, OTHER_HOST, ALONE and OLDER.
        older: step_s and backward_s of the algebra on OLDER, in a run that has been replaced since.

    Raises:
        ValueError: one of these runs is not recorded.
    """
    runs = {machine: _named(machine, run_names) for machine, run_names in names.items()}
    traced = [run for run in runs[FITTED] if run.record.trace]
    scaled = {name: [run for run in runs[FITTED] if run.config.rung == name] for name in SCALED}
    fit = fit_link(scaled[SCALED[0]], report.messages(traced))
    links = (
        fit.link,
        Link(fit.low.alpha_s, fit.high.bytes_per_s),
        Link(fit.high.alpha_s, fit.low.bytes_per_s),
    )
    old, new = (ladder_of(runs[machine])["GPU"] for machine in (OLDER, ALONE))
    other_host = {SCALED[0]: runs[OTHER_HOST]}  # the same rung on two GPUs of a different host
    steps = {
        name: _recorded(rung_runs, other_host.get(name, []), new[name, "bf16"], fit.link)
        for name, rung_runs in scaled.items()
    }
    steps[OLD] = _newer(older, old, new, *(steps[name] for name in SCALED))
    return pd.DataFrame([{"rung": name} | _row(step, links) for name, step in steps.items()])


def _named(machine: str, names: list[str]) -> list[Run]:
    """Return the recorded runs with these names, in the order in which they ran."""
    runs = [run for run in recordings.recorded_runs(machine) if run.name in names]
    if missing := {*names} - {run.name for run in runs}:
        raise ValueError(f"{machine}: {', '.join(sorted(missing))} is not recorded")
    return runs


def _row(step: _Step, links: tuple[Link, Link, Link]) -> dict[str, float]:
    alone, ddp = step.alone_s, step.ddp_s

    def on_all(alone_s: float, ddp_s: float, link: Link) -> float:
        buckets = config_buckets("resnet50", 224, 25.0)
        return alone_s + ddp_s + exposed_s(buckets, GPUS, link, step.backward * alone_s)

    link, fast, slow = links
    best_s = on_all(alone.best, ddp.best, link)
    speed = Span(best_s, on_all(alone.high, ddp.high, slow), on_all(alone.low, ddp.low, fast))
    efficiency = Span(
        alone.best / best_s,
        alone.low / on_all(alone.low, ddp.high, slow),
        alone.high / on_all(alone.high, ddp.low, fast),
    )
    values = {
        "alone_images_per_s": Span(
            *(IMAGES_PER_GPU / alone_s for alone_s in (alone[0], alone[2], alone[1]))
        ),
        "own_ms": Span(*(1e3 * own_s for own_s in ddp)),
        "images_per_s": Span(*(GPUS * IMAGES_PER_GPU / step_s for step_s in speed)),
        "efficiency": efficiency,
    }
    ends = {
        name + end: value
        for name, span in values.items()
        for end, value in zip(("", "_low", "_high"), span)
    }
    return ends | {"exposed_ms": 1e3 * (best_s - alone.best - ddp.best)}


def _recorded(runs: list[Run], other_runs: list[Run], alone: Record, link: Link) -> _Step:
    """Describe a recorded rung.

    Args:
        runs: on one GPU and on several of one host.
        others: on several GPUs of a different host.
        alone: on one GPU of a different host.
    """
    by_gpus = {run.record.gpus: run for run in runs}
    base = by_gpus[1]
    ddp_s = [_ddp_s(by_gpus[gpus], base, link) for gpus in (2, 4)]
    grown_s = max(0.0, ddp_s[1].best - ddp_s[0].best)
    ddp_s += [_ddp_s(run, base, link) for run in other_runs]
    alone_s = [base.record.step_s, alone.step_s]
    return _Step(
        Span(base.record.step_s, min(alone_s), max(alone_s)),
        base.record.backward_s / base.record.step_s,
        Span(
            float(np.median([span.best for span in ddp_s])),
            max(0.0, min(span.low for span in ddp_s)),
            max(span.high for span in ddp_s) + grown_s,
        ),
    )


def _ddp_s(run: Run, base: Run, link: Link) -> Span:
    """Return DDP's overhead in a run, with the 95 % interval of the two runs' ratio."""
    gpus, alone_s = run.record.gpus, base.record.step_s
    buckets = config_buckets("resnet50", 224, run.config.bucket_mb)
    shown_s = exposed_s(buckets, gpus, link, base.record.backward_s)
    faster = ratio(run, base)
    speedups = (faster.value, faster.high, faster.low)
    return Span(*(alone_s * (gpus / speedup - 1) - shown_s for speedup in speedups))


def _newer(run: dict[str, Any], old: Ladder, new: Ladder, eager: _Step, compiled: _Step) -> _Step:
    """Predict the algebra, recorded on one older GPU, on a newer one.

    One GPU's speedup is that of other rungs there. DDP's overhead is that of the eager step, whose
    gradients become ready in the same order; at worst that of the compiled one.
    """
    known = [key for key in old if key in new and key[0] != OLD]
    speedups = [new[key].images_per_s / old[key].images_per_s for key in known]
    overheads = eager.ddp_s, compiled.ddp_s
    factors = (float(np.median(speedups)), max(speedups), min(speedups))
    return _Step(
        Span(*(run["step_s"] / overhead for overhead in factors)),
        run["backward_s"] / run["step_s"],
        Span(
            overheads[0].best,
            min(overhead.low for overhead in overheads),
            max(overhead.high for overhead in overheads),
        ),
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    prediction = node_prediction()
    table = fitted(prediction["fitted_to"], prediction["replaced_run"])
    print(table.to_json(orient="records", indent=1))
