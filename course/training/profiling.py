"""When a run is traced: torch's profiler on a schedule, and oneDNN's own account on a CPU."""

from __future__ import annotations

import ctypes
import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerAction

from course.config import Config
from course.runs.files import whole_file
from course.valid import TRACE_WAIT

ONEDNN_FILE = "onednn.csv"


def schedule(cfg: Config) -> Callable[[int], ProfilerAction]:
    """For `torch.profiler.profile`: one step to wait, one to warm up, then `profile_steps`.

    A config without `profile_steps` gets the schedule that never records.
    """
    if not cfg.profile_steps:
        return lambda step: ProfilerAction.NONE
    return torch.profiler.schedule(
        wait=TRACE_WAIT - 1, warmup=1, active=cfg.profile_steps, repeat=1
    )


def is_traced(step: int, cfg: Config) -> bool:
    """Does the trace hold this step (counted from 0)?"""
    return TRACE_WAIT <= step < TRACE_WAIT + cfg.profile_steps


def write(profiler: torch.profiler.profile, path: Path) -> None:
    """Write a trace, packed: PyTorch, asked for that, packs line by line, at five times the cost.

    Raises:
        OSError: the disk is full, or cannot be written.
        RuntimeError: PyTorch has no trace to write.
    """
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(plain))
        with (
            plain.open("rb") as trace,
            whole_file(path, sync=False) as file,
            gzip.open(file, "wb", compresslevel=6) as packed,
        ):
            shutil.copyfileobj(trace, packed, 2**20)


class OneDnnAccount:
    """oneDNN's verbose lines, one a primitive with its kernel, types and time, into a file.

    PyTorch's profiler names operators, and a CPU has no list of kernels beside it; the library
    that computes convolutions there keeps one, but prints it on standard output only.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: int | None = None

    def start(self) -> None:
        """From here on standard output goes into the file."""
        if self._kept is not None:
            return
        _flush()
        self._kept = os.dup(1)
        with self._path.open("ab") as file:
            os.dup2(file.fileno(), 1)
        torch._C._verbose.mkldnn_set_verbose(torch.backends.mkldnn.VERBOSE_ON)

    def stop(self) -> None:
        """Give standard output back."""
        if self._kept is None:
            return
        torch._C._verbose.mkldnn_set_verbose(torch.backends.mkldnn.VERBOSE_OFF)
        _flush()
        os.dup2(self._kept, 1)
        os.close(self._kept)
        self._kept = None


def _flush() -> None:
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)  # oneDNN prints through C's own buffer
