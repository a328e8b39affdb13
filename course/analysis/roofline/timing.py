"""Time one operation on this machine, in one number format."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from course.training.precision import HALF, set_tf32

FORMATS = ("fp32", "tf32", "bf16", "fp16")
DEVICES = ("cpu", "cuda")


def check_format(device: torch.device, precision: str) -> None:
    """Raise ValueError unless operations in this number format can be timed on the device."""
    if precision not in FORMATS:
        raise ValueError(f"precision={precision!r}: choose {' or '.join(FORMATS)}")
    if device.type not in DEVICES:
        raise ValueError(f"device={device.type!r}: choose {' or '.join(DEVICES)}")
    if precision == "tf32" and device.type != "cuda":
        raise ValueError("precision='tf32' exists only on CUDA: choose fp32 or bf16 or fp16")


@contextmanager
def number_format(device: torch.device, precision: str) -> Iterator[torch.dtype]:
    """Allow TF32 only for "tf32" within the context, and return the dtype for tensors.

    Raises:
        ValueError: an unknown precision, or one that the device does not have.
    """
    check_format(device, precision)
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    set_tf32(precision == "tf32")
    try:
        yield HALF.get(precision, torch.float32)
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one call, until the device has finished it."""
    _synchronize(device)
    begin = time.perf_counter()
    call()
    _synchronize(device)
    return time.perf_counter() - begin


def quartiles(times: list[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    return tuple(float(value) for value in np.percentile(times, [25, 50, 75]))


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
