"""Speed ratios of two runs, with a confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from course.runs.files import read_dict
from course.runs.run import Run
from course.text import digits

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 1000
SURE = 0.05  # a ratio is certain enough if its interval extends at most this far on either side
CONFIDENCE = 0.95
NO_TURNS = "no-turns.json"  # in a job's folder: why its runs took no turns
LEAST_TURNS = 8  # before a ratio can be certain: few turns may agree at random
# Values for an interval with this confidence, turns or the measured steps of a run: the extremes of
# n values contain the median with a probability of 1 - 2 / 2**n, which is below 95 % for n < 6.
MIN_TURNS = 6
FEW_TURNS = 3  # values that show a large effect: one or two do not show how far they scatter
# Pixels per step below which Python may limit the speed of a fast GPU: on the recorded H100, a
# batch of 64 images of 224 px left it idle in bf16 (2,274 images/s), one of 128 did not (3,733).
FEW_PIXELS = 100 * 224**2
# Fields that decide how images are loaded.
LOADING = (
    *("data", "format", "shuffle_buffer", "workers", "persistent_workers", "prefetch_factor"),
    *("pin_memory", "non_blocking", "uint8", "randaugment", "start_px"),
)
WAITING = 0.3  # share of a step in which a GPU waits for images, from which that sets its speed


@dataclass(frozen=True)
class Ratio:
    """Throughput over throughput, with a 95 % interval (None if a run has no steps).

    `turns` is the number of pairs of neighbouring blocks; 0 if the runs did not take turns: then
    the interval includes variation between steps, but not changes of the machine between the runs.
    With fewer than MIN_TURNS turns, low and high are the smallest and the largest ratio. `steps` is
    the smaller number of measured steps, and `load` the larger load average per core, if known.
    """

    value: float
    low: float | None = None
    high: float | None = None
    turns: int = 0
    steps: int | None = None
    load: float | None = None

    def __str__(self) -> str:
        interval = f" ({digits(self.low)} to {digits(self.high)})" if self.low is not None else ""
        return f"{digits(self.value)}×{interval}"

    @property
    def too_few(self) -> str:
        """Why its interval does not have the confidence that it claims; "" if it does."""
        count, unit = (self.turns, "turn") if self.turns else (self.steps, "measured step")
        if count is None or count >= MIN_TURNS:
            return ""
        return f"{count} {unit}{'s'[: count != 1]}, where {MIN_TURNS} are needed{self.busy}"

    def noise(self, line: float = 1.0) -> str:
        """Return why it does not show on which side of a line the true ratio is; "" if it does.

        An interval within ± SURE shows the ratio well enough, also next to the line. So do few
        values that are farther from the line than from each other.
        """
        if self.low is None:
            return self.too_few
        is_far = max(self.low - line, line - self.high) > self.high - self.low
        if is_far and (self.turns or self.steps or 0) >= FEW_TURNS:
            return ""
        if self.too_few or not self.low <= line <= self.high:
            return self.too_few
        if self.high <= self.value * (1 + SURE) and self.value <= self.low * (1 + SURE):
            return ""
        return f"its interval has both slower and faster{self.busy}"

    @property
    def busy(self) -> str:
        """The load of the machine, if more processes wanted to compute than it has cores."""
        return f"; the machine's load was {self.load:.1f} per core" if (self.load or 0) > 1 else ""


def ratio(run: Run, against: Run) -> Ratio:
    """Compute images per second of `run` over those of `against`.

    If they took turns (`launch(…, against=…)`), each turn gives one ratio of neighbouring blocks,
    and the value is their `centre`. Otherwise it is the ratio of medians, with a bootstrap over the
    steps of both, which does not include changes of the machine between the runs.

    Raises:
        ValueError: a run measured nothing.
    """
    return ratio_of_pair(*pair(run, against))


def ratio_of_pair(top: Run, bottom: Run) -> Ratio:
    """Compute the `ratio` of two runs that `pair` selected."""
    if top == bottom:
        return Ratio(1.0)
    for side in (top, bottom):
        if side.record is None or side.record.images_per_s is None:
            raise ValueError(f"{side} measured nothing: a ratio needs runs that ended ok")
    loads = [side.record.load for side in (top, bottom) if side.record.load is not None]
    load = max(loads, default=None)
    if len(ratios := _turn_ratios(top, bottom)):
        return Ratio(*centre(ratios), turns=len(ratios), load=load)
    value = top.record.images_per_s / bottom.record.images_per_s
    times = [_step_times(side) for side in (top, bottom)]
    steps = min(map(len, times))
    if steps == 0:  # their files were not kept
        return Ratio(value, load=load)
    random = np.random.default_rng(0)
    speeds = [
        side.config.batch_size / np.median(random.choice(t, (RESAMPLES, len(t))), axis=1)
        for side, t in zip((top, bottom), times)
    ]
    low, high = np.percentile(speeds[0] / speeds[1], [2.5, 97.5])
    return Ratio(value, float(low), float(high), steps=steps, load=load)


def pair(run: Run, against: Run) -> tuple[Run, Run]:
    """Return the two runs to compare: those that took turns in one job, if there are such."""
    if run == against:
        return run, against
    if partner := _find_partner(run, against):
        return run, partner
    return _find_partner(against, run) or run, against


def _find_partner(run: Run, against: Run) -> Run | None:
    """Return the successful run in `run`'s own job that equals `against` or repeats it."""
    for member in run.together:
        is_other = member != run and member.status == "ok"
        if is_other and (member == against or _are_equal(member, against)):
            return member
    return None


def _are_equal(a: Run, b: Run) -> bool:
    """Return whether two runs have the same script, config and number of GPUs."""
    same_config = a.requested_config == b.requested_config
    return same_config and a.gpus == b.gpus and a.script.read_text() == b.script.read_text()


def _turn_ratios(run: Run, partner: Run) -> np.ndarray:
    """Return the ratio of each turn in which both runs computed, without warm-up."""
    if partner.folder not in [member.folder for member in run.together]:
        return np.array([])
    speeds = [_speed_by_turn(side) for side in (run, partner)]
    if any(speed is None for speed in speeds):
        return np.array([])
    return (speeds[0] / speeds[1]).dropna().to_numpy()


def _speed_by_turn(run: Run) -> pd.Series | None:
    """Return images per second of each turn; None without turns."""
    steps = run.steps
    if "turn" not in steps:
        return None
    steps = steps[steps["turn"] > 0]
    return run.config.batch_size / steps.groupby("turn")["step_s"].mean()


def centre(ratios: np.ndarray) -> tuple[float, float, float]:
    """Estimate the centre of scattered ratios above 0, and the ends of its 95 % interval.

    The estimate of Hodges and Lehmann (1963, doi 10.1214/aoms/1177704172) on logarithms: the median
    over all pairs of turns of their mean. The interval is that of Wilcoxon's signed-rank test. It
    only assumes that the sign of each turn's logarithm would be random if the runs were equal,
    which the conductor's random order ensures. A few disturbed turns change it little.
    """
    logs = np.log(ratios)
    i, j = np.triu_indices(len(logs))
    means = np.sort((logs[i] + logs[j]) / 2)
    outside = _count_outside(len(logs))
    low, high = means[outside], means[len(means) - 1 - outside]
    return tuple(float(np.exp(value)) for value in (np.median(means), low, high))


def is_sure(ratios: np.ndarray) -> bool:
    """Return whether the interval of these turns is within ± SURE of the value."""
    if len(ratios) < LEAST_TURNS:
        return False
    value, low, high = centre(ratios)
    return high / value <= 1 + SURE and value / low <= 1 + SURE


@lru_cache
def _count_outside(turns: int) -> int:
    """Return how many of the sorted means are outside the interval, on each side."""
    # The probability that the ranks of positive turns add up to k, if each sign is random.
    probabilities = np.ones(1)
    for rank in range(1, turns + 1):
        padded = np.pad(probabilities, (0, rank)) + np.pad(probabilities, (rank, 0))
        probabilities = padded / 2
    return max(0, int(np.sum(np.cumsum(probabilities) <= (1 - CONFIDENCE) / 2)) - 1)


def explain_ratio(result: Ratio, run: Run) -> str:
    """Return a sentence about what the ratio's interval includes."""
    if not result.turns:
        hint = "" if run.is_recorded else " launch(…, against=…) has them take turns."
        reason = why_not(run)
        return (
            "The two ran one after the other: the interval includes their steps, and nothing of "
            f"what the machine did in between.{f' ({reason}.)' if reason else hint}"
        )
    config, reason = run.config, "all steps of the config were done"
    steps = config.epochs * config.steps - config.warmup_steps
    if config.budget_s and run.record.steps_measured < steps:
        reason = f"the budget of {config.budget_s:g} s for each run was used up"
    is_narrow = result.turns >= LEAST_TURNS and result.high <= result.value * (1 + SURE)
    if config.budget_s and is_narrow:
        reason = f"the interval was within {SURE:.0%}"
    warning = f"; fewer than {MIN_TURNS}, so the brackets contain the extremes" * (
        result.turns < MIN_TURNS
    )
    return f"The two computed in turns, {result.turns} of them, until {reason}{warning}."


def few_steps(run: Run) -> str:
    """Return why a run's speed is too noisy to judge; "" if enough steps were measured."""
    record = run.record
    return Ratio(1.0, steps=record.steps_measured or None, load=record.load).too_few


def why_not(run: Run) -> str:
    """Return why the runs of this run's group did not take turns; "" if they did."""
    return read_dict(run.job.folder / NO_TURNS).get("why_not", "")


def idle_gpu_warning(run: Run, against: Run | None = None) -> str:
    """Return why loading or Python, and not the GPU, may have limited this run's speed; or "".

    Loading is no reason if it is what the run changes, compared with another one.
    """
    config, record = run.config, run.record
    if record.device == "cpu":
        return ""
    if (
        record.load_s
        and record.load_s > WAITING * record.step_s
        and not _loads_unlike(run, against)
    ):
        return (
            f"the GPU waited for images in {record.load_s / record.step_s:.0%} of a step: "
            f'data="synthetic" measures the GPU alone, and more workers load faster'
        )
    if config.batch_size * config.image_px**2 >= FEW_PIXELS:
        return ""
    return (
        f"a step of {config.batch_size} images of {config.image_px} px gives a fast GPU so little "
        f"to do that Python may set the pace: measure with quick=False, or a larger batch_size"
    )


def _loads_unlike(run: Run, against: Run | None) -> bool:
    if against is None:
        return False
    return any(getattr(run.config, name) != getattr(against.config, name) for name in LOADING)


def _step_times(run: Run) -> np.ndarray:
    steps = run.steps
    return steps["step_s"].to_numpy()[run.config.warmup_steps :] if len(steps) else np.array([])
