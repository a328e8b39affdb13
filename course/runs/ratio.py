"""Speed ratios of two runs, with a confidence interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from course.runs.files import read_dict
from course.runs.run import Run
from trainspeed.ratio import LEAST_TURNS, MIN_TURNS, SURE, Ratio, centre

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 1000
NO_TURNS = "no-turns.json"  # in a job's folder: why its runs took no turns
# Pixels per step below which Python may limit the speed of a fast GPU: on the recorded H100, a
# batch of 64 images of 224 px left it idle in bf16 (2,274 images/s), one of 128 did not (3,733).
FEW_PIXELS = 100 * 224**2
# Fields that decide how images are loaded.
LOADING = (
    *("data", "format", "shuffle_buffer", "workers", "persistent_workers", "prefetch_factor"),
    *("pin_memory", "non_blocking", "uint8", "randaugment", "start_px"),
)
WAITING = 0.3  # share of a step in which a GPU waits for images, from which that sets its speed


def ratio(run: Run, against: Run) -> Ratio:
    """Compute images or tokens per second of `run` over those of `against`.

    If they took turns (`launch(…, against=…)`), each turn gives one ratio of neighbouring blocks,
    and the value is their `centre`. Otherwise it is the ratio of medians, with a bootstrap over the
    steps of both, which does not include changes of the machine between the runs.

    Raises:
        ValueError: a run measured nothing, or one counts images and the other tokens.
    """
    return ratio_of_pair(*pair(run, against))


def ratio_of_pair(top: Run, bottom: Run) -> Ratio:
    """Compute the `ratio` of two runs that `pair` selected."""
    if top == bottom:
        return Ratio(1.0)
    for side in (top, bottom):
        if side.record is None or side.record.images_per_s is None:
            raise ValueError(f"{side} measured nothing: a ratio needs runs that ended ok")
    if top.config.unit != bottom.config.unit:
        raise ValueError(f"{top.name} counts {top.config.unit}, {bottom.name} {bottom.config.unit}")
    loads = [side.record.load for side in (top, bottom) if side.record.load is not None]
    load = max(loads, default=None)
    if len(ratios := _turn_ratios(top, bottom)):
        return Ratio(*centre(ratios), turns=len(ratios), load=load)
    speeds = [side.record.images_per_s * (side.config.tokens or 1) for side in (top, bottom)]
    value = speeds[0] / speeds[1]
    times = [_step_times(side) for side in (top, bottom)]
    steps = min(map(len, times))
    if steps == 0:  # their files were not kept
        return Ratio(value, load=load)
    random = np.random.default_rng(0)
    speeds = [
        _step_size(side) / np.median(random.choice(t, (RESAMPLES, len(t))), axis=1)
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
    """Return images or tokens per second of each turn; None without turns."""
    steps = run.steps
    if "turn" not in steps:
        return None
    steps = steps[steps["turn"] > 0]
    return _step_size(run) / steps.groupby("turn")["step_s"].mean()


def _step_size(run: Run) -> int:
    """Return the images or tokens of a step."""
    return run.config.batch_size * (run.config.tokens or 1)


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
    if record.device == "cpu" or config.tokens:  # a text is on the device already
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
