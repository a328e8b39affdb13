"""Power and joules from readings of a counter, and nothing without a counter."""

import time

import pytest
import torch

from course.training.energy import EnergyMeter, counter

TICK_S = 0.1  # the counter changes this often


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch):
    """Return a meter, and a function that trains for some time at a constant power."""
    joules, now = [5e6], [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    counted = [joules[0]]
    meter = EnergyMeter(lambda: counted[0])

    def train(seconds: float, watts: float, step_s: float = 0.064) -> None:
        for _ in range(round(seconds / step_s)):
            meter.start()
            ticks = now[0] // TICK_S
            now[0] += step_s
            joules[0] += step_s * watts
            if now[0] // TICK_S > ticks:
                counted[0] = joules[0] - watts * (now[0] % TICK_S)

    return meter, train


def test_a_cpu_has_no_counter() -> None:
    assert counter(torch.device("cpu")) is None
    meter = EnergyMeter(None)
    meter.start()
    meter.stop()
    assert meter.watts is None and meter.summary(100) == {}


def test_a_counter_that_fails_leaves_the_energy_unknown(
    meter, capsys: pytest.CaptureFixture
) -> None:
    meter, train = meter
    read, count = meter._read, iter(range(100))

    def failing() -> float:
        if (number := next(count)) >= 35:
            raise OSError(f"GPU is lost at reading {number}")
        return read()

    meter._read = failing
    train(1.6, 300)  # complete: 25 readings
    meter.stop()
    assert meter.watts == pytest.approx(300, rel=0.01)
    train(3.2, 300)
    meter.stop()
    train(3.2, 300)
    meter.stop()
    assert next(count) == 36 and meter.watts is None and meter.summary(100) == {}
    assert capsys.readouterr().err.count("energy unknown: OSError: GPU is lost at reading 35") == 1


def test_power_is_the_mean_of_the_intervals(meter) -> None:
    meter, train = meter
    train(3.2, 300)
    meter.stop()
    train(0.064, 300)
    meter.stop()
    train(3.2, 700)
    meter.stop()
    meter.stop()
    assert meter.watts == pytest.approx(500, rel=0.01)
    assert meter.summary(200) == {"watts": meter.watts, "joules_per_image": meter.watts / 200}


@pytest.mark.parametrize("seconds", [1.2, 1.5, 2.05])
def test_a_stale_counter_costs_no_accuracy(meter, seconds: float) -> None:
    meter, train = meter
    train(seconds, 600, step_s=0.01)
    meter.stop()
    assert meter.watts == pytest.approx(600, rel=0.011)  # of two readings, up to 10 % wrong


def test_blocks_of_a_step_between_two_changes_are_counted(meter) -> None:
    meter, train = meter
    for _ in range(40):
        train(0.07, 600, step_s=0.07)
        meter.stop()
    assert meter.watts == pytest.approx(600, rel=0.1)


@pytest.mark.parametrize("seconds, watts", [(0.9, 400), (2.0, 0)])
def test_a_short_interval_or_a_constant_counter_gives_no_power(meter, seconds, watts) -> None:
    meter, train = meter
    train(seconds, watts)
    meter.stop()
    assert meter.watts is None
