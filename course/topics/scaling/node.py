"""What the eight GPUs of a node bring: predicted from one, two and four, and then measured.

A step on eight is one GPU's, what DDP takes for itself, and what is still sent after backward. The
first two are recorded, the third is the model's (`course.topics.scaling.ring`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from course.runs import recordings
from course.runs.ratio import ratio
from course.runs.run import Run
from course.topics.communication import report
from course.topics.scaling import efficiency
from course.topics.scaling.ring import Link, exposed_s

if TYPE_CHECKING:
    import pandas as pd

GPUS, EACH = 8, 256  # of a node; images of each in a step
NODE = "nvidia-h200-x8"
FITTED = "nvidia-h200-x4"  # where rungs were recorded on one, two and four
OTHER_HOST = "nvidia-h200-x2"  # and one of them on two
ALONE, OLDER = "nvidia-h200", "nvidia-h100"
SCALED = ("channels_last", "compile")  # recorded there
OLD = "algebra"  # recorded on one older GPU alone


class Published(NamedTuple):
    """A node whose training of ResNet-50 on ImageNet was published."""

    what: str
    gpus: str
    images_per_s: float
    source: str


RESULTS = "https://github.com/mlcommons/training_results_v4.0"  # there in NVIDIA/results:
PUBLISHED = (
    Published("MLPerf v4.0", "8 × H200", 63_599, RESULTS),  # h200_ngc24.04_mxnet/resnet
    Published("MLPerf v4.0", "8 × H100", 57_295, RESULTS),  # eos_ngc24.04_mxnet/resnet
)


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


def predicted() -> pd.DataFrame:
    """What eight H200s should train, 256 images on each: a row a rung.

    Columns: rung, alone_images_per_s (of one GPU), own_ms (DDP's own work), exposed_ms (sent after
    backward), images_per_s, efficiency; each but exposed_ms with _low and _high behind it.

    The intervals' ends: one GPU as fast as the fastest that is recorded, or the slowest. DDP's own
    work as short as any recorded run on several GPUs allows, or the longest and grown from four to
    eight as from two to four. The link at the ends of its own interval.
    """
    import pandas as pd

    traced = [run for gpus in (2, 4) for run in report.recorded_runs(FITTED, gpus).values()]
    fitted = efficiency.fit(efficiency.recorded_runs(FITTED), report.messages(traced))
    links = (
        fitted.link,
        Link(fitted.low.alpha_s, fitted.high.bytes_per_s),
        Link(fitted.high.alpha_s, fitted.low.bytes_per_s),
    )
    steps = {name: _recorded(name, fitted.link) for name in SCALED}
    steps[OLD] = _newer(*(steps[name] for name in SCALED))
    return pd.DataFrame([{"rung": name} | _row(step, links) for name, step in steps.items()])


def _row(step: _Step, links: tuple[Link, Link, Link]) -> dict[str, float]:
    alone, own = step.alone_s, step.own_s

    def on_all(alone_s: float, own_s: float, link: Link) -> float:
        sent = efficiency.sent_by("resnet50", 1000, 224, 25.0)
        return alone_s + own_s + float(exposed_s(sent, GPUS, link, step.backward * alone_s))

    link, fast, slow = links
    best_s = on_all(alone.best, own.best, link)
    speed = Span(best_s, on_all(alone.most, own.most, slow), on_all(alone.least, own.least, fast))
    share = Span(
        alone.best / best_s,
        alone.least / on_all(alone.least, own.most, slow),
        alone.most / on_all(alone.most, own.least, fast),
    )
    values = {
        "alone_images_per_s": Span(*(EACH / alone_s for alone_s in (alone[0], alone[2], alone[1]))),
        "own_ms": Span(*(1e3 * own_s for own_s in own)),
        "images_per_s": Span(*(GPUS * EACH / step_s for step_s in speed)),
        "efficiency": share,
    }
    ends = {
        name + end: value
        for name, span in values.items()
        for end, value in zip(("", "_low", "_high"), span)
    }
    return ends | {"exposed_ms": 1e3 * (best_s - alone.best - own.best)}


def _recorded(name: str, link: Link) -> _Step:
    """A rung that was recorded on one GPU and on several."""
    runs = efficiency.recorded_runs(FITTED, name)
    # The first of each count: what is recorded later was not known when this was predicted.
    first = {run.record.gpus: run for run in reversed(runs) if _share(run) == EACH}
    base = first[1]
    own_s = [_own_s(first[gpus], base, link) for gpus in (2, 4)]
    grown_s = max(0.0, own_s[1].best - own_s[0].best)
    own_s += [_own_s(run, base, link) for run in _on_other_host(name)]
    alone_s = [base.record.step_s, recordings.ladders(ALONE)["GPU"][name, "bf16"].step_s]
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
    sent = efficiency.sent_by("resnet50", 1000, 224, run.config.bucket_mb)
    shown_s = float(exposed_s(sent, gpus, link, base.record.backward_s))
    found = ratio(run, base)
    times = (found.value, found.high, found.low)
    return Span(*(alone_s * (gpus / faster - 1) - shown_s for faster in times))


def _on_other_host(name: str) -> Iterable[Run]:
    """The same computed on two GPUs of another host, for another lab."""
    if name == SCALED[0]:
        known = recordings.recorded_runs(OTHER_HOST, "sharding")
        yield from (run for run in known if run.config.rung == "resnet50-ddp")


def _newer(eager: _Step, compiled: _Step) -> _Step:
    """The algebra, recorded on one older GPU, as it should be on a newer one.

    One GPU is as many times faster as other rungs are there. DDP does for it what it does for the
    eager step, whose gradients come as its do; at worst what it does for the compiled one.
    """
    old, new = (recordings.ladders(machine)["GPU"] for machine in (OLDER, ALONE))
    record = old[OLD, "bf16"]
    known = [key for key in old if key in new and key[0] != OLD]
    faster = [new[key].images_per_s / old[key].images_per_s for key in known]
    own = eager.own_s, compiled.own_s
    times = (float(np.median(faster)), max(faster), min(faster))
    return _Step(
        Span(*(record.step_s / each for each in times)),
        record.backward_s / record.step_s,
        Span(own[0].best, min(each.least for each in own), max(each.most for each in own)),
    )


def measured(machine: str = NODE, purpose: str = "scaling") -> pd.DataFrame:
    """The recorded runs on all GPUs of a node, 256 images on each: rows as of `scaling`, and rung.

    Empty where no node was recorded yet.

    Args:
        purpose: "scaling" of synthetic images, "feeding" of files that the GPUs decode.
    """
    import pandas as pd

    tables = [pd.DataFrame(columns=["rung", "gpus", "images_each"])]
    known = machine in recordings.machines()
    runs = recordings.recorded_runs(machine, purpose) if known else []
    for name in dict.fromkeys(run.config.rung for run in runs):
        some = [run for run in runs if run.config.rung == name and run.record.status == "ok"]
        if some:
            tables.append(efficiency.scaling(some).assign(rung=name))
    rows = pd.concat(tables)
    return rows[(rows["gpus"] == GPUS) & (rows["images_each"] == EACH)].reset_index(drop=True)


def beside_prediction(rung: str, machine: str = NODE) -> pd.DataFrame:
    """A rung on all GPUs of a node as `measured`, beside what was predicted of it.

    Columns besides: predicted_ and then images_per_s or efficiency, with _low and _high behind.
    Empty where no node was recorded yet: a prediction alone is nothing to draw among measurements.
    """
    rows = measured(machine)
    rows = rows[rows["rung"] == rung]
    return (
        rows
        if rows.empty
        else rows.merge(
            predicted().add_prefix("predicted_").rename(columns={"predicted_rung": "rung"}),
            on="rung",
        )
    )


def _share(run: Run) -> int:
    return run.config.batch_size // run.record.gpus
