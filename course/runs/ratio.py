"""How many times faster? Throughput over throughput, with an interval that can be believed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from course.runs.run import Run
from course.text import digits

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 1000
SURE = 0.05  # a ratio is sure enough once its interval reaches no further to either side
CONFIDENCE = 0.95
LEAST_TURNS = 8  # before a ratio is believed: an interval of a few turns is narrow by chance
FEWEST = 6  # turns of which an interval with this confidence can be had at all
# Pixels of a step below which Python may set a fast GPU's pace: on the recorded H100 a batch of 64
# images of 224 px left it waiting in bf16 (2,274 images/s), and one of 128 did not (3,733).
FEW_PIXELS = 100 * 224**2


@dataclass(frozen=True)
class Ratio:
    """Throughput over throughput, with a 95 % interval (None where a side has no steps).

    `turns` is the number of pairs of neighbouring blocks that it rests on; 0 where the two did
    not take turns: then the interval knows their steps alone, not what the machine did between.
    Of fewer than FEWEST turns low and high are the smallest and the largest.
    """

    value: float
    low: float | None = None
    high: float | None = None
    turns: int = 0

    def __str__(self) -> str:
        spread = f" ({digits(self.low)} to {digits(self.high)})" if self.low is not None else ""
        return f"{digits(self.value)}×{spread}"


def ratio(run: Run, against: Run) -> Ratio:
    """Images per second of `run` over those of `against`.

    Where they took turns (`launch(…, against=…)`), each turn gives one ratio of neighbouring
    blocks, and the value is their `centre`. Otherwise it is the ratio of medians, with a bootstrap
    over the steps of both: it holds for these two runs, and not for what the machine did between.

    Raises:
        ValueError: a run that measured nothing.
    """
    if run == against:
        return Ratio(1.0)
    top, bottom = beside(against, run) or run, beside(run, against) or against
    for each in (top, bottom):
        if each.record is None or each.record.images_per_s is None:
            raise ValueError(f"{each} measured nothing: a ratio needs runs that ended ok")
    if len(pairs := paired(top, bottom)):
        return Ratio(*centre(pairs), turns=len(pairs))
    value = top.record.images_per_s / bottom.record.images_per_s
    images = [top.config.batch_size, bottom.config.batch_size]
    times = [_step_times(top), _step_times(bottom)]
    if min(len(t) for t in times) == 0:
        return Ratio(value)
    random = np.random.default_rng(0)
    speeds = [
        n / np.median(random.choice(t, (RESAMPLES, len(t))), axis=1) for n, t in zip(images, times)
    ]
    low, high = np.percentile(speeds[0] / speeds[1], [2.5, 97.5])
    return Ratio(value, float(low), float(high))


def beside(run: Run, against: Run) -> Run | None:
    """The run of `run`'s own job that is what `against` is, itself or its repetition, and ok.

    None where there is none.
    """
    for each in run.together:
        is_it = each == against or (each != run and _is_same(each, against))
        if is_it and each != run and each.status == "ok":
            return each
    return None


def _is_same(a: Run, b: Run) -> bool:
    """Did both run the same script with the same config on as many GPUs?"""
    alike = a.requested_config == b.requested_config
    alike = alike and a.launched.get("gpus", 1) == b.launched.get("gpus", 1)
    return alike and a.script.read_text() == b.script.read_text()


def paired(run: Run, partner: Run) -> np.ndarray:
    """The ratio of images per second of each turn in which both computed, warm-up left out."""
    if partner.folder not in [each.folder for each in run.together]:
        return np.array([])
    blocks = [_by_turn(each) for each in (run, partner)]
    if any(each is None for each in blocks):
        return np.array([])
    return (blocks[0] / blocks[1]).dropna().to_numpy()


def _by_turn(run: Run) -> pd.Series | None:
    """Images per second of each turn's block, the last where it was repeated; None: no turns."""
    steps = run.steps
    if "turn" not in steps:
        return None
    steps = steps[steps["turn"] > 0]
    if "again" in steps:
        steps = steps[steps["again"] == steps.groupby("turn")["again"].transform("max")]
    return run.config.batch_size / steps.groupby("turn")["step_s"].mean()


def centre(ratios: np.ndarray) -> tuple[float, float, float]:
    """What lies in the middle of ratios that scatter, and the ends of its 95 % interval.

    The estimate of Hodges and Lehmann (1963, doi 10.1214/aoms/1177704172), on logarithms: the
    median over all pairs of turns of their mean. The interval is that of Wilcoxon's signed-rank
    test. It asks of the turns only that each might as well have come out the other way round, had
    the two runs been the same; the conductor's order by chance sees to that. A few turns that were
    disturbed move it little.

    Args:
        ratios: above 0, one a turn.
    """
    logs = np.log(ratios)
    i, j = np.triu_indices(len(logs))
    means = np.sort((logs[i] + logs[j]) / 2)
    out = _left_out(len(logs))
    low, high = means[out], means[len(means) - 1 - out]
    return tuple(float(np.exp(each)) for each in (np.median(means), low, high))


def is_sure(ratios: np.ndarray) -> bool:
    """Do the turns so far suffice: is the interval within ± SURE of the value?"""
    if len(ratios) < LEAST_TURNS:
        return False
    value, low, high = centre(ratios)
    return high / value <= 1 + SURE and value / low <= 1 + SURE


@lru_cache
def _left_out(turns: int) -> int:
    """How many of the sorted means lie outside the interval, on each side."""
    # How likely the ranks of the positive ones add up to k, were each sign the toss of a coin.
    chances = np.ones(1)
    for rank in range(1, turns + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return max(0, int(np.sum(np.cumsum(chances) <= (1 - CONFIDENCE) / 2)) - 1)


def told(found: Ratio, run: Run) -> str:
    """In a sentence: what the ratio's interval rests on."""
    if not found.turns:
        alone = "" if run.is_recorded else " launch(…, against=…) has them take turns."
        reason = why_not(run)
        return (
            "The two ran one after the other: the interval knows their steps, and nothing of what "
            f"the machine did in between.{f' ({reason}.)' if reason else alone}"
        )
    config, why = run.config, "all the steps that the config asks for were done"
    done = run.record.steps_measured
    if config.budget_s and done < config.epochs * config.steps - config.warmup_steps:
        why = f"the budget of {config.budget_s:g} s for each run was used up"
    if config.budget_s and found.turns >= LEAST_TURNS and found.high <= found.value * (1 + SURE):
        why = f"the interval was within {SURE:.0%}"
    few = f"; fewer than {FEWEST}, so in brackets are the extremes" * (found.turns < FEWEST)
    return f"The two computed in turns, {found.turns} of them, until {why}{few}."


def why_not(run: Run) -> str:
    """Why the runs of this run's group did not take turns; empty where they did, or it is alone."""
    for path in sorted(run.job.folder.glob("turns-*.json"), reverse=True):
        return json.loads(path.read_text()).get("why_not", "")
    return ""


def held_by_host(run: Run) -> str:
    """Why a GPU may have waited for Python in this run, so that it times Python; or ""."""
    config = run.config
    if run.record.device == "cpu" or config.batch_size * config.image_px**2 >= FEW_PIXELS:
        return ""
    return (
        f"a step of {config.batch_size} images of {config.image_px} px gives a fast GPU so little "
        f"to do that Python may set the pace: measure with quick=False, or a larger batch_size"
    )


def _step_times(run: Run) -> np.ndarray:
    steps = run.steps
    return steps["step_s"].to_numpy()[run.config.warmup_steps :] if len(steps) else np.array([])
