"""Joules: the arithmetic between two readings of a counter, and none where nothing counts."""

import time

import pytest
import torch

from course.training.energy import EnergyMeter, counter


def test_a_cpu_counts_nothing() -> None:
    assert counter(torch.device("cpu")) is None
    meter = EnergyMeter(None)
    meter.start()
    meter.stop()
    assert meter.watts is None and meter.summary(100) == {}


def test_power_is_the_mean_of_the_stretches_and_of_nothing_between(monkeypatch) -> None:
    joules, now = [5e6], [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter = EnergyMeter(lambda: joules[0])

    def passes(seconds: float, watts: float) -> None:
        now[0] += seconds
        joules[0] += seconds * watts

    meter.start()
    passes(2, 300)
    meter.start()  # every measured step says so
    passes(1, 300)
    meter.stop()
    passes(10, 1000)  # validation
    meter.start()
    passes(1, 700)
    meter.stop()
    meter.stop()
    assert meter.watts == pytest.approx((3 * 300 + 700) / 4)
    assert meter.summary(200) == {"watts": meter.watts, "joules_per_image": meter.watts / 200}


def test_a_counter_that_stands_still_is_not_zero_watts() -> None:
    meter = EnergyMeter(lambda: 7.0)
    meter.start()
    meter.stop()
    assert meter.watts is None


@pytest.mark.parametrize("seconds, known", [(0.9, False), (1.1, True)])
def test_a_short_stretch_says_nothing(monkeypatch, seconds: float, known: bool) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter = EnergyMeter(lambda: 400 * now[0])
    meter.start()
    now[0] += seconds
    meter.stop()
    assert (meter.watts is not None) == known
