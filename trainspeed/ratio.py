"""The ratio of two speeds that were measured in turns, with a confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trainspeed.text import digits

SURE = 0.05  # a ratio is certain enough if its interval extends at most this far on either side
BLOCK_S = 0.5  # minimum length of a block: shorter ones measure how a process wakes up
CONFIDENCE = 0.95
LEAST_TURNS = 8  # before a ratio can be certain: few turns may agree at random
# Values for an interval with this confidence, turns or the measured steps of a run: the extremes of
# n values contain the median with a probability of 1 - 2 / 2**n, which is below 95 % for n < 6.
MIN_TURNS = 6
FEW_TURNS = 3  # values that show a large effect: one or two do not show how far they scatter


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


def centre(ratios: np.ndarray) -> tuple[float, float, float]:
    """Estimate the centre of scattered ratios above 0, and the ends of its 95 % interval.

    The estimate of Hodges and Lehmann (1963, doi 10.1214/aoms/1177704172) on logarithms: the median
    over all pairs of turns of their mean. The interval is that of Wilcoxon's signed-rank test. It
    only assumes that the sign of each turn's logarithm would be random if the runs were equal,
    which the random order of turns ensures. A few disturbed turns change it little.
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
