"""The lab's choice of memory settings, and the check of a learner's version."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import pandas as pd

from course import recorded_runs
from labs.saving_memory.measurements import memory_strategies

KNEE = 32  # images that keep an H200 busy with CoAtNet-3: with fewer, it waits for Python
SHARE = 0.9  # of the limit: the rest is for libraries, and for gaps between tensors
PeakGib = Callable[[int, str], float]  # of a micro-batch and a checkpointing setting
Settings = tuple[int, str] | None

# Batch, limit in GiB, and predicted GiB: fixed, per image, and per image with checkpointing; if it
# is not KNEE, how many images keep the GPU busy.
CASES = (
    (128, 60.0, (2.0, 0.33, 0.1)),  # all images at once
    (256, 40.0, (2.0, 0.33, 0.1)),  # 64 at once
    (256, 24.0, (2.0, 0.33, 0.1)),  # 32 at once: the smallest without checkpointing
    (128, 45.0, (2.0, 0.33, 0.1)),  # 128 would take 44.2 GiB, which is not a tenth below the limit
    (128, 10.0, (2.0, 0.33, 0.1)),  # checkpointing, 64 at once
    (64, 4.5, (2.0, 0.33, 0.1)),  # checkpointing, 16 at once
    (48, 12.0, (2.0, 0.33, 0.1)),  # 48 does not fit, and 24 would leave the GPU waiting
    (96, 14.0, (2.0, 0.33, 0.1)),  # 48 does not fit; 32, a third of the batch, would
    (64, 2.0, (2.0, 0.33, 0.1)),  # nothing fits
    (128, 12.0, (4.0, 0.05, 0.01)),  # a small network
    (75, 16.0, (2.0, 0.33, 0.1)),  # an odd batch has no half
    (800, 12.0, (2.0, 0.33, 0.1)),  # 100, 50 and 25 at once: 25 are too few
    (1024, 90.0, (6.5, 0.11, 0.02)),  # 512 at once
    (64, 0.3, (0.1, 0.2, 0.1)),  # checkpointing, one at once
    (24, 12.0, (2.0, 0.33, 0.1)),  # fewer images than a GPU needs, but all of them fit
    (56, 11.0, (2.0, 0.29, 0.27)),  # checkpointing, 28 at once
    (256, 8.0, (2.0, 0.33, 0.1), 8),  # 8 at once keep a large network's GPU busy
    (256, 24.0, (2.0, 0.33, 0.1), 64),  # checkpointing, because 32 are too few for a small one
)
LIMITS = (60, 40, 24, 16, 12, 8, 6)  # GiB


def choose_settings(batch_size: int, limit_gib: float, peak_gib: PeakGib, knee: int) -> Settings:
    """Return the micro-batch and the checkpointing of the fastest step that fits, or None.

    Args:
        knee: images in a pass that keep the GPU busy; with fewer, it waits for Python.
    """
    sizes = [batch_size]
    while sizes[-1] % 2 == 0:
        sizes.append(sizes[-1] // 2)
    plain = [(size, "") for size in sizes if size >= knee or size == batch_size]
    for size, checkpointing in plain + [(size, "every") for size in sizes]:
        if peak_gib(size, checkpointing) <= SHARE * limit_gib:
            return size, checkpointing
    return None


def check_choices(function: Callable[..., Settings]) -> str:
    """Compare the choices for several batches and limits with the solution's."""
    for batch, limit, network, *knees in CASES:
        peak_gib, knee = partial(_linear_peak, *network), (knees or [KNEE])[0]
        result = function(batch, limit, peak_gib, knee)
        expected = choose_settings(batch, limit, peak_gib, knee)
        if result is not None:
            is_pair = isinstance(result, tuple | list) and len(result) == 2
            assert is_pair and result[0] == int(result[0]) and result[1] in ("", "every"), (
                f'it returns {result!r}, expected a pair such as (64, "") or (64, "every"), or None'
            )
            result = int(result[0]), result[1]
        if result != expected:
            problem = _problem(batch, limit, peak_gib, knee, result, expected)
            place = f"{batch} images, {limit:g} GiB" + f", knee={knee}" * (knee != KNEE)
            raise AssertionError(f"{place}: {result}. {problem}")
    return f"{len(CASES)} cases: batches of 24 to 1,024 images, limits of 0.3 to 90 GiB"


def _linear_peak(
    fixed: float, plain: float, recomputed: float, size: int, checkpointing: str
) -> float:
    assert checkpointing in ("", "every"), (
        f'peak_gib(…, {checkpointing!r}): expected "" or "every" for checkpointing'
    )
    return fixed + size * (recomputed if checkpointing else plain)


def _problem(
    batch: int,
    limit: float,
    peak_gib: PeakGib,
    knee: int,
    result: Settings,
    expected: Settings,
) -> str:
    """Describe a wrong choice."""
    if result is None:
        return f"Expected {expected}, which takes {peak_gib(*expected):.3g} GiB"
    size, checkpointing = result
    peak = peak_gib(*result)
    takes = f"This takes {peak:.3g} GiB"
    if expected is None:
        return f"{takes}: nothing fits, so return None"
    if peak > limit:
        return f"{takes}: compare `peak_gib(…)` with the limit before you return"
    if peak > SHARE * limit:
        return f"{takes}: leave a tenth of the limit free"
    if batch % size or (batch // size) & (batch // size - 1):
        return f"Expected the batch, halved once or several times: {expected[0]}"
    if not checkpointing and size < min(knee, batch):
        return (
            f"With fewer than {knee} images in a pass, the GPU waits for Python. Checkpointing "
            f"with {expected[0]} images in a pass is faster"
        )
    if checkpointing and not expected[1]:
        return (
            f"Without checkpointing, {expected[0]} images in a pass fit, and nothing is computed "
            f"twice: try all micro-batches of at least {knee} images before checkpointing"
        )
    return f"{expected[0]} images in a pass fit, too: begin with the largest"


def check_speed(function: Callable[..., Settings]) -> str:
    """Check that no other recorded settings of CoAtNet-3 that fit are faster than the choices."""
    speeds = _recorded()
    for limit in LIMITS:
        fits = speeds[speeds["peak_gib"] <= SHARE * limit]
        peak_gib = lambda *settings: speeds["peak_gib"].get(settings, math.inf)  # noqa: E731
        choice = function(128, limit, peak_gib, KNEE)
        choice = choice and (*choice,)
        speed = fits["images_per_s"]
        best = (int(speed.idxmax()[0]), speed.idxmax()[1])
        assert choice == best, (
            f"{limit} GiB: an H200 trained {speed.get(choice, 0):.0f} images/s with {choice}, and "
            f"{speed[best]:.0f} with {best}"
        )
    limits = ", ".join(map(str, LIMITS))
    return f"in {limits} GiB it chooses the fastest settings that an H200 recorded for CoAtNet-3"


@cache
def _recorded() -> pd.DataFrame:
    """Return images_per_s and peak_gib of recorded runs, by micro-batch and checkpointing."""
    runs = [
        run
        for run in recorded_runs("nvidia-h200", "memory")
        if run.config.batch_size == 128
        and run.config.checkpointing in ("", "every")
        and not (run.config.memory_gib or run.config.offload)
    ]
    table = memory_strategies(runs)
    checkpointing = ["every" if "recomputed" in name else "" for name in table["strategy"]]
    return table.set_index(pd.MultiIndex.from_arrays([table["micro_batch"], checkpointing]))
