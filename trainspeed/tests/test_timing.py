"""Times of operations, number formats, and clocks."""

from __future__ import annotations

import time

import pytest
import torch
from torch import distributed

from trainspeed import timing
from trainspeed.clocks import clock_for
from trainspeed.formats import set_tf32, tf32_settings

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, which only the test changes."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize("call_s, calls", [(0.01, 11), (0.2, 3), (2.0, 2)])
def test_long_calls_are_repeated_less_often(clock: list[float], call_s: float, calls: int) -> None:
    count = []

    def call() -> None:
        count.append(1)
        clock[0] += call_s * (1 + len(count) % 2)

    assert timing.fastest(call, CPU) == pytest.approx(call_s)
    assert len(count) == calls


def test_stages_are_timed_item_by_item(clock: list[float]) -> None:
    def stage(seconds: float) -> int:
        clock[0] += seconds
        return seconds

    def read() -> list[float]:
        for seconds in (0.001, 0.003):
            clock[0] += seconds
            yield seconds

    ms = timing.time_stages(read, [stage, lambda seconds: stage(2 * seconds)])
    assert ms.tolist() == [pytest.approx([1, 1, 2]), pytest.approx([3, 3, 6])]


def test_a_clock_of_the_host(clock: list[float]) -> None:
    host = clock_for(CPU)
    begin = host.mark()
    clock[0] = 3.0
    assert host.seconds(begin, host.mark()) == 3.0 and host.is_past(begin)


def test_formats() -> None:
    before = tf32_settings()
    with timing.number_format(CPU, "bf16") as dtype:
        assert dtype == torch.bfloat16 and tf32_settings() == (False, False)
    assert tf32_settings() == before
    with pytest.raises(ValueError, match="precision='fp8': choose fp32 or tf32 or bf16 or fp16"):
        timing.number_format(CPU, "fp8").__enter__()
    with pytest.raises(ValueError, match="precision='tf32' exists only on CUDA"):
        timing.number_format(CPU, "tf32").__enter__()


def test_old_and_new_settings_of_tf32_agree() -> None:
    before = tf32_settings()
    for settings in ((False, False), (True, True), (True, False), (False, True), before):
        set_tf32(*settings)
        assert tf32_settings() == settings
        # An error if they disagreed with the new ones; torch.compile reads them.
        old = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        assert old == settings
        assert torch.get_float32_matmul_precision() == ("high" if settings[1] else "highest")


def test_all_reduces_of_a_group() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        times = timing.time_all_reduce(1024, CPU, blocks=2)
    finally:
        distributed.destroy_process_group()
    assert len(times) == 2 and min(times) > 0
