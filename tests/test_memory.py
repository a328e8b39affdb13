"""Memory: the unit of the peak, and which errors mean that there is none left."""

import pytest
import torch

from course import memory
from course.config import rung
from course.recordings import recorded

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


@pytest.mark.slow
@pytest.mark.parametrize("batch_size, measured_gib", [(64, 3.0), (256, 11.01), (1024, 43.0)])
def test_prediction_is_near_what_the_h100_measured(batch_size: int, measured_gib: float) -> None:
    config = rung("channels_last", data="synthetic", batch_size=batch_size)
    assert memory.predict(config).peak_gib == pytest.approx(measured_gib, rel=0.05)


@pytest.mark.slow
def test_prediction_is_near_the_recorded_fp32_run() -> None:
    table = recorded("nvidia-h100")
    first = table[table["rung"].eq("device")].iloc[0]
    assert (first["precision"], first["tf32"], first["batch_size"]) == ("fp32", False, 256)
    found = memory.predict(rung("device", data="synthetic", batch_size=256))
    assert found.peak_gib == pytest.approx(first["peak_gib"], rel=0.05)


def test_what_runs_on_the_cpu_is_not_predicted() -> None:
    with pytest.raises(ValueError, match="device='cpu'.*set device='auto'"):
        memory.predict(rung("baseline"))
