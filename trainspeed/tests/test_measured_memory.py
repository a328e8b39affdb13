"""The memory of this process: its peak, its limit, and errors that mean "out of memory"."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from trainspeed import measured_memory as memory
from trainspeed.resources import GIB

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="compares with /proc, which only Linux has")
def test_the_peak_contains_what_the_process_allocated() -> None:
    before = memory.peak(CPU)
    tensor = torch.ones(int(0.25 * GIB) // 4)
    after = memory.peak(CPU)
    assert before["memory_kind"] == "process, resident"
    assert after["peak_gib"] >= tensor.nbytes / GIB
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert before["peak_gib"] <= after["peak_gib"] == pytest.approx(int(kib) * 1024 / GIB, rel=0.05)


@pytest.mark.parametrize(
    "device, memory_gib, words",
    [
        ("meta", 1.0, "memory_gib=1: meta has no limit. Use cuda or cpu"),
        ("cpu", 0.01, "memory_gib=0.01: this process took"),
    ],
)
def test_a_limit_that_cannot_be_kept(device: str, memory_gib: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        memory.limit(torch.device(device), memory_gib)


@pytest.mark.parametrize(
    "error, is_out",
    [
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("could not create a primitive"), False),  # without a limit
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_mean_out_of_memory(error: BaseException, is_out: bool) -> None:
    assert memory.is_out_of_memory(error) == is_out
