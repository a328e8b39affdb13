"""Schedule torch's profiler."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerAction

from course.config import TRACE_WAIT, Config


def schedule(cfg: Config) -> Callable[[int], ProfilerAction]:
    """Return the schedule for `torch.profiler.profile`: wait, warm up, then `profile_steps`.

    Without `profile_steps` it never records.
    """
    if not cfg.profile_steps:
        return lambda step: ProfilerAction.NONE
    return torch.profiler.schedule(
        wait=TRACE_WAIT - 1, warmup=1, active=cfg.profile_steps, repeat=1
    )


def is_traced(step: int, cfg: Config) -> bool:
    """Return whether the trace contains this step, counted from 0."""
    return TRACE_WAIT <= step < TRACE_WAIT + cfg.profile_steps
