"""Schedule torch's profiler, and write oneDNN's verbose log on a CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerAction

from course.config import TRACE_WAIT, Config

ONEDNN_FILE = "onednn.csv"


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


@contextmanager
def onednn_log(path: Path) -> Iterator[None]:
    """Write oneDNN's verbose lines to a file: one per primitive, with kernel, types and time.

    PyTorch's profiler lists operators, but no kernels on a CPU. oneDNN, which computes
    convolutions there, can list them, but only on standard output.
    """
    _flush()
    stdout = os.dup(1)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
    try:
        with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            yield
    finally:
        _flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _flush() -> None:
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)  # oneDNN prints through C's own buffer
