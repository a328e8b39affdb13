"""Power and joules from readings of a counter, and nothing without a counter."""

import time

import pytest
import torch

from course.training.energy import EnergyMeter, counter


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch):
    """Return a meter, and a function that lets time pass at a constant power."""
    joules, now = [5e6], [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def run(seconds: float, watts: float) -> None:
        now[0] += seconds
        joules[0] += seconds * watts

    return EnergyMeter(lambda: joules[0]), run


def test_a_cpu_has_no_counter() -> None:
    assert counter(torch.device("cpu")) is None
    meter = EnergyMeter(None)
    meter.start()
    meter.stop()
    assert meter.watts is None and meter.summary(100) == {}


def test_power_is_the_mean_of_the_intervals(meter) -> None:
    meter, run = meter
    meter.start()
    run(2, 300)
    meter.start()  # called in every measured step
    run(1, 300)
    meter.stop()
    run(10, 1000)  # validation
    meter.start()
    run(1, 700)
    meter.stop()
    meter.stop()
    assert meter.watts == pytest.approx((3 * 300 + 700) / 4)
    assert meter.summary(200) == {"watts": meter.watts, "joules_per_image": meter.watts / 200}


@pytest.mark.parametrize("seconds, watts", [(0.9, 400), (2.0, 0)])
def test_a_short_interval_or_a_constant_counter_gives_no_power(meter, seconds, watts) -> None:
    meter, run = meter
    meter.start()
    run(seconds, watts)
    meter.stop()
    assert meter.watts is None
