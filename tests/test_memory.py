"""Memory: the unit of the peak, and which errors mean that there is none left."""

import pytest
import torch

from course import memory

CPU = torch.device("cpu")


def test_memory_peak_of_a_process_holds_what_it_allocated() -> None:
    before = memory.peak(CPU)
    held = torch.ones(int(0.25 * memory.GIB) // 4)
    after = memory.peak(CPU)
    assert before["memory_kind"] == "process, resident"
    assert after["peak_gib"] >= held.nbytes / memory.GIB
    assert before["peak_gib"] <= after["peak_gib"] < 1024  # GiB, not KiB


def test_out_of_memory_is_known_by_its_error() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert memory.is_out_of_memory(caught.value)
    assert memory.is_out_of_memory(MemoryError())
    assert memory.is_out_of_memory(torch.OutOfMemoryError())
    assert not memory.is_out_of_memory(RuntimeError("shapes do not match"))
