"""The prediction for the eight GPUs of a node, from recorded runs on one, two and four.

    python -m research.predict_node     # prints rungs of labs/day2_3_scaling/predicted_x8.json

A step on eight is one GPU's, what DDP takes for itself, and what is still sent after backward. The
first two are recorded, the third is the model's (`labs.day2_3_scaling.model`).
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
from labs.day2_3_scaling.configs import IMAGES_PER_GPU
from labs.day2_3_scaling.efficiency import GPUS, node_prediction
from labs.day2_3_scaling.model import Link, config_buckets, exposed_s, fit_link
from tools.pages import ladder_of

FITTED = "nvidia-h200-x4"  # where rungs were recorded on one, two and four
OTHER_HOST = "nvidia-h200-x2"  # and one of them on two
ALONE, OLDER = "nvidia-h200", "nvidia-h100"
SCALED = ("channels_last", "compile")  # recorded there
OLD = "algebra"  # recorded on one older GPU alone
Ladder = dict[tuple[str, str], Record]  # by rung and precision


class Span(NamedTuple):
    """What is most likely, and the ends between which it should lie."""

    best: float
    least: float
    most: float


@dataclass(frozen=True)
class _Step:
    """A rung on one GPU, and what several add to its step.

    Attributes:
        alone_s: its step.
        backward: the share of it that is backward.
        own_s: what DDP takes for itself.
    """

    alone_s: Span
    backward: float
    own_s: Span


def fitted(names: dict[str, list[str]], older: dict[str, Any]) -> pd.DataFrame:
    """What eight H200s should train, 256 images on each: a row a rung.

    Columns: rung, alone_images_per_s (of one GPU), own_ms (DDP's own work), exposed_ms (sent after
    backward), images_per_s, efficiency; each but exposed_ms with _low and _high behind it.

    The intervals' ends: one GPU as fast as the fastest that is recorded, or the slowest. DDP's own
    work as short as any recorded run on several GPUs allows, or the longest and grown from four to
    eight as from two to four. The link at the ends of its own interval.

    Args:
        names: of recorded runs, by machine: FITTED, OTHER_HOST, ALONE and OLDER. No other is read.
        older: step_s and backward_s of the algebra on OLDER, in a run that another has replaced.

    Raises:
        ValueError: one of these runs is not recorded.
    """
    runs = {machine: _named(machine, some) for machine, some in names.items()}
    traced = [run for run in runs[FITTED] if run.record.trace]
    scaled = {name: [run for run in runs[FITTED] if run.config.rung == name] for name in SCALED}
    found = fit_link(scaled[SCALED[0]], report.messages(traced))
    links = (
        found.link,
        Link(found.low.alpha_s, found.high.bytes_per_s),
        Link(found.high.alpha_s, found.low.bytes_per_s),
    )
    old, new = (ladder_of(runs[machine])["GPU"] for machine in (OLDER, ALONE))
    others = {SCALED[0]: runs[OTHER_HOST]}  # the same computed on two GPUs of another host
    steps = {
        name: _recorded(some, others.get(name, []), new[name, "bf16"], found.link)
        for name, some in scaled.items()
    }
    steps[OLD] = _newer(older, old, new, *(steps[name] for name in SCALED))
    return pd.DataFrame([{"rung": name} | _row(step, links) for name, step in steps.items()])


def _named(machine: str, names: list[str]) -> list[Run]:
    """The recorded runs of these names, in the order in which they ran."""
    runs = [run for run in recordings.recorded_runs(machine) if run.name in names]
    if missing := {*names} - {run.name for run in runs}:
        raise ValueError(f"{machine}: {', '.join(sorted(missing))} is not recorded")
    return runs


def _row(step: _Step, links: tuple[Link, Link, Link]) -> dict[str, float]:
    alone, own = step.alone_s, step.own_s

    def on_all(alone_s: float, own_s: float, link: Link) -> float:
        sent = config_buckets("resnet50", 224, 25.0)
        return alone_s + own_s + exposed_s(sent, GPUS, link, step.backward * alone_s)

    link, fast, slow = links
    best_s = on_all(alone.best, own.best, link)
    speed = Span(best_s, on_all(alone.most, own.most, slow), on_all(alone.least, own.least, fast))
    share = Span(
        alone.best / best_s,
        alone.least / on_all(alone.least, own.most, slow),
        alone.most / on_all(alone.most, own.least, fast),
    )
    values = {
        "alone_images_per_s": Span(
            *(IMAGES_PER_GPU / alone_s for alone_s in (alone[0], alone[2], alone[1]))
        ),
        "own_ms": Span(*(1e3 * own_s for own_s in own)),
        "images_per_s": Span(*(GPUS * IMAGES_PER_GPU / step_s for step_s in speed)),
        "efficiency": share,
    }
    ends = {
        name + end: value
        for name, span in values.items()
        for end, value in zip(("", "_low", "_high"), span)
    }
    return ends | {"exposed_ms": 1e3 * (best_s - alone.best - own.best)}


def _recorded(runs: list[Run], others: list[Run], alone: Record, link: Link) -> _Step:
    """A rung that was recorded on one GPU and on several; others: on several, elsewhere; alone: on
    one GPU, elsewhere."""
    of = {run.record.gpus: run for run in runs}
    base = of[1]
    own_s = [_own_s(of[gpus], base, link) for gpus in (2, 4)]
    grown_s = max(0.0, own_s[1].best - own_s[0].best)
    own_s += [_own_s(run, base, link) for run in others]
    alone_s = [base.record.step_s, alone.step_s]
    return _Step(
        Span(base.record.step_s, min(alone_s), max(alone_s)),
        base.record.backward_s / base.record.step_s,
        Span(
            float(np.median([each.best for each in own_s])),
            max(0.0, min(each.least for each in own_s)),
            max(each.most for each in own_s) + grown_s,
        ),
    )


def _own_s(run: Run, base: Run, link: Link) -> Span:
    """What DDP took in a run, with the 95 % interval of the two runs' ratio."""
    gpus, alone_s = run.record.gpus, base.record.step_s
    sent = config_buckets("resnet50", 224, run.config.bucket_mb)
    shown_s = exposed_s(sent, gpus, link, base.record.backward_s)
    found = ratio(run, base)
    times = (found.value, found.high, found.low)
    return Span(*(alone_s * (gpus / faster - 1) - shown_s for faster in times))


def _newer(run: dict[str, Any], old: Ladder, new: Ladder, eager: _Step, compiled: _Step) -> _Step:
    """The algebra, recorded on one older GPU, as it should be on a newer one.

    One GPU is as many times faster as other rungs are there. DDP does for it what it does for the
    eager step, whose gradients come as its do; at worst what it does for the compiled one.
    """
    known = [key for key in old if key in new and key[0] != OLD]
    faster = [new[key].images_per_s / old[key].images_per_s for key in known]
    own = eager.own_s, compiled.own_s
    times = (float(np.median(faster)), max(faster), min(faster))
    return _Step(
        Span(*(run["step_s"] / each for each in times)),
        run["backward_s"] / run["step_s"],
        Span(own[0].best, min(each.least for each in own), max(each.most for each in own)),
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    said = node_prediction()
    table = fitted(said["fitted_to"], said["replaced_run"])
    print(table.to_json(orient="records", indent=1))
