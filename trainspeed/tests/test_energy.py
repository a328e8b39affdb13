"""Power and joules from readings of a counter, and nothing without a counter."""

import time

import pynvml
import pytest
import torch

from trainspeed import energy, measure_energy, timing
from trainspeed.energy import EnergyMeter, counter

CPU = torch.device("cpu")
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
    assert counter(CPU) is None
    meter = EnergyMeter(None)
    meter.start()
    meter.stop()
    assert meter.watts is None


def test_a_counter_that_fails_leaves_the_energy_unknown(meter) -> None:
    meter, train = meter
    read, count = meter._read, iter(range(100))
    meter._read = lambda: read() if next(count) < 35 else None
    train(1.6, 300)  # complete: 25 readings
    meter.stop()
    assert meter.watts == pytest.approx(300, rel=0.01)
    train(3.2, 300)
    meter.stop()
    train(3.2, 300)
    meter.stop()
    assert next(count) == 36 and meter.watts is None


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


def test_the_energy_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "counter", lambda device: lambda: 300 * (now[0] // TICK_S) * TICK_S)

    def step() -> None:
        now[0] += 0.04

    energy = measure_energy(step, seconds=4, device=CPU)
    assert energy.joules == pytest.approx(12, rel=0.05)
    assert (energy.watts, energy.seconds) == pytest.approx((300, 0.04), rel=0.05)
    assert str(timing.Energy(12, 300, 0.04)) == "12 J per call: 300 W for 40 ms"


def test_readings_are_no_part_of_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    def read() -> float:
        now[0] += 0.001
        return 300 * (now[0] // TICK_S) * TICK_S

    def step() -> None:
        now[0] += 0.001

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "counter", lambda device: read)
    energy = measure_energy(step, seconds=2, device=CPU)
    assert energy.seconds == pytest.approx(0.001, rel=0.05)
    assert energy.watts == pytest.approx(300, rel=0.1)


def test_a_driver_that_fails_is_a_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now, answers = [100.0], [5000, 5000, 6000]

    def consumption(handle: str) -> int:
        if not answers:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return answers.pop()

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(energy, "_is_nvidia", lambda device: True)
    monkeypatch.setattr(energy, "nvml_handle", lambda device: "a handle")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", consumption)
    with pytest.raises(ValueError, match=r"the driver of cpu stopped answering \(GPU is lost\)"):
        measure_energy(lambda: now.__setitem__(0, now[0] + 0.5), seconds=2, device=CPU)


def test_a_step_whose_energy_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="cpu: no energy counter is known. NVIDIA's GPUs"):
        measure_energy(lambda: None, device=CPU)
    with pytest.raises(ValueError, match=r"seconds=0\.2: expected at least 1, because"):
        measure_energy(lambda: None, seconds=0.2, device=CPU)
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "counter", lambda device: lambda: 5.0)
    with pytest.raises(ValueError, match="the counter of cpu did not change in 2.0 s"):
        measure_energy(lambda: now.__setitem__(0, now[0] + 0.5), seconds=2, device=CPU)
