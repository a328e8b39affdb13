"""Time and energy, which only a GPU can show: faster rungs, joules, and clocks that agree."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pynvml
import pytest
import torch

from course import rung
from course.data.loader import Synthetic
from course.runs.ratio import ratio
from course.runs.run import PROJECT, Run
from course.training.recorder import Recorder
from trainspeed.energy import nvml_handle

pytestmark = pytest.mark.gpu
Trained = Callable[..., Run]


@pytest.mark.parametrize(
    "name, against, least",
    [
        ("amp", "device", 1.5),  # 2.6 on an H100: these limits are far below
        ("channels_last", "amp", 1.3),  # 1.7
    ],
)
def test_a_rung_is_faster_by_more_than_its_spread(
    trained: Trained, name: str, against: str, least: float
) -> None:
    speedup = ratio(trained(name), trained(against))
    print(f"{name} against {against}: {speedup}")
    assert speedup.low > least


def power_limit_w() -> float:
    """Return the power limit of this card in watts."""
    handle = nvml_handle(torch.device("cuda", 0))
    return pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3


@pytest.mark.parametrize("name", ["device", "amp"])
def test_power_and_energy_are_measured(trained: Trained, name: str) -> None:
    record = trained(name).record
    assert record.steps_measured * record.step_s > 1  # seconds: power needs at least one
    print(f"{name}: {record.watts} W of {power_limit_w()}, {record.joules_per_image} J an image")
    assert 0 < record.watts < power_limit_w()
    assert record.joules_per_image == pytest.approx(record.watts / record.images_per_s)


def test_the_record_names_the_card(trained: Trained) -> None:
    record, card = trained("device").record, torch.cuda.get_device_properties(0)
    assert (record.device, record.machine) == ("cuda", card.name)
    assert record.hardware["device_gib"] == pytest.approx(card.total_memory / 1024**3, abs=0.1)
    assert record.memory_kind == "device allocator"
    assert record.versions["cuda"] == torch.version.cuda and record.versions["driver"]


def synchronised_s() -> float:
    """Return the host's clock when the device has finished all its work."""
    torch.cuda.synchronize()
    return time.perf_counter()


def test_measured_steps_take_what_a_waiting_host_times(tmp_path: Path) -> None:
    cfg = rung("device", data="synthetic", epochs=1, steps=21, warmup_steps=5, val_steps=0)
    host_s = [0.0]

    def batches() -> Iterator:
        batch = next(iter(Synthetic(cfg, torch.device("cuda"))))
        for number in range(20):  # fewer than `steps`, so that the last one ends here
            if number == cfg.warmup_steps:
                begin_s = synchronised_s()
            yield batch
        host_s[0] = synchronised_s() - begin_s

    script = ModuleType("train")
    exec((PROJECT / "solutions" / "train.py").read_text(), vars(script))
    script.loaders = lambda *_, **__: (batches(), [])
    (tmp_path / "config.json").write_text(cfg.to_json())
    script.main(Recorder(Run(tmp_path)))
    measured = Run(tmp_path).steps["step_s"][cfg.warmup_steps :]
    torch.cuda.empty_cache()
    assert len(measured) == 15
    assert measured.sum() == pytest.approx(host_s[0], rel=0.05)
