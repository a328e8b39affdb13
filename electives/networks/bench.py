"""The benchmark: training steps of a network in one precision and layout, timed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from course.training import Recorder, autocast, has_units, models, speed_quartiles
from electives.networks import catalogue
from trainspeed import measured_memory as memory
from trainspeed.clocks import clock_for
from trainspeed.timing import number_format

CHOICES = {
    "precision": ("fp32", "tf32", "fp16", "bf16"),
    "layout": ("contiguous", "channels_last"),
}
# Sizes for which a CPU needs seconds.
QUICK = {
    "ssd300": {"batch": 2},
    "unet3d": {"batch": 1, "px": 64},
    "resnet50": {"batch": 8, "px": 112},
}
CPU_STEPS = {"warmup": 1, "iterations": 3}
# On a GPU at full size, where a turn takes up to 0.7 s: the published 400 would take 7 minutes.
FULL_SIZE_TURNS = {"warmup": 5, "iterations": 15}
PRODUCTS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose3d, nn.Linear)
FORMAT_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Setting:
    """A setting to measure: one row of the table."""

    network: str = "resnet50"
    precision: str = "fp32"
    layout: str = "contiguous"
    compile: bool = False
    batch: int = 0  # 0: the published benchmark's
    px: int = 0  # per side of an image or volume; 0: the network's
    warmup: int = 100
    iterations: int = 300

    def __post_init__(self) -> None:
        network = catalogue.get(self.network)
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name}={value!r}: choose {' or '.join(choices)}")
        object.__setattr__(self, "batch", self.batch or network.batch_size)
        object.__setattr__(self, "px", self.px or network.px)


def measure(setting: Setting) -> dict[str, Any]:
    """Time a setting in this process; return the row of `measure_workload`.

    Raises:
        ValueError: TF32 on a device without it.
    """
    device = device_of()
    with number_format(device, setting.precision):
        return measure_workload(Workload(setting, device))


def measure_workload(workload: Workload) -> dict[str, Any]:
    """Time the steps of a workload.

    Returns the row: the setting's fields; images_per_s and step_s with quartiles; parameters;
    first_loss and last_loss; formats (number of products by format); peak_gib (None on a CPU).
    """
    setting, device = workload.setting, workload.device
    torch.backends.cudnn.benchmark = True
    formats = workload.count_formats()
    for _ in range(setting.warmup):
        workload.step()
    workload.wait()
    memory.reset_peak(device)  # without the kernels that were tried
    clock = clock_for(device)
    marks = [clock.mark()]
    for _ in range(setting.iterations):
        workload.step()
        marks.append(clock.mark())
    workload.wait()
    seconds = np.array([clock.seconds(*pair) for pair in zip(marks, marks[1:])])
    return {
        **asdict(setting),
        "formats": formats,
        **speed_quartiles(seconds, setting.batch),
        "parameters": models.parameter_count(workload.network),
        "first_loss": float(workload.losses[0]),
        "last_loss": float(workload.losses[-1]),
        # On a CPU, the peak would include the rest of the process.
        "peak_gib": None if device.type == "cpu" else memory.peak(device)["peak_gib"],
        "machine": Recorder(None).describe(device)["machine"],
    }


def device_of() -> torch.device:
    """Return this machine's accelerator, if it has one."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


class Workload:
    """A network, its batch of random images, and the step that is timed."""

    def __init__(self, setting: Setting, device: torch.device, seed: int = 0) -> None:
        self.setting, self.device = setting, device
        self.spec = catalogue.get(setting.network)
        torch.manual_seed(0)
        with device:
            self.network = self.spec.build()
        layout = torch.contiguous_format
        if setting.layout == "channels_last":
            formats = {2: torch.channels_last, 3: torch.channels_last_3d}
            layout = formats[self.spec.dims]
            self.network.to(memory_format=layout)
        self.model: Callable = torch.compile(self.network) if setting.compile else self.network
        self.optimizer = torch.optim.SGD(self.network.parameters(), self.spec.lr, momentum=0.9)
        self.scaler = torch.amp.GradScaler(device.type, enabled=setting.precision == "fp16")
        generator = torch.Generator().manual_seed(seed)
        inputs, targets = self.spec.random_batch(setting.batch, setting.px, generator)
        self.inputs = inputs.to(device, memory_format=layout)
        several = isinstance(targets, tuple)
        self.targets = tuple(t.to(device) for t in targets) if several else targets.to(device)
        self.losses: list[torch.Tensor] = []  # of the steps so far

    def step(self) -> None:
        """Train one step."""
        with autocast(self.device, self.setting.precision):
            loss = self.spec.loss(self.model(self.inputs), self.targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    def count_formats(self) -> dict[str, int]:
        """Count the network's products by output format, in a first forward pass."""
        cast = autocast(self.device, self.setting.precision)
        # In evaluation, BatchNorm does not change its statistics.
        with _count_formats(self.network.eval()) as counts, torch.inference_mode(), cast:
            self.network(self.inputs)
        self.network.train()
        return dict(counts)

    def wait(self) -> None:
        """Wait until the device has done all steps."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


@contextmanager
def _count_formats(model: nn.Module) -> Iterator[Counter[str]]:
    """Count the format of each product's output in the context."""
    counts: Counter[str] = Counter()

    def count(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        counts[FORMAT_NAMES.get(output.dtype, str(output.dtype))] += 1

    modules = [module for module in model.modules() if isinstance(module, PRODUCTS)]
    hooks = [module.register_forward_hook(count) for module in modules]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def precisions() -> list[str]:
    """Return the precisions for which this machine has units."""
    device = device_of()
    names = [name for name in CHOICES["precision"] if name != "tf32" or device.type == "cuda"]
    return [name for name in names if has_units(device, name)]


def base_setting(network: str, quick: bool = False, **fields: Any) -> Setting:
    """Return a setting whose steps suit this machine; a quick one takes seconds on a CPU."""
    catalogue.get(network)
    on_cpu = quick or device_of().type == "cpu"
    defaults = (QUICK[network] if quick else {}) | (CPU_STEPS if on_cpu else {})
    return Setting(network, **(defaults | fields))


def combinations(base: Setting, **choices: list[Any]) -> list[Setting]:
    """Return the setting with each combination of choices; the last field changes fastest."""
    settings = [base]
    for name, values in choices.items():
        settings = [replace(setting, **{name: value}) for setting in settings for value in values]
    return settings


def benchmark_here(quick: bool = True) -> pd.DataFrame:
    """Time each network's training in each precision that this machine has units for.

    Precisions take turns, one step each, so that other programs disturb all of them equally.

    Columns: network, precision, images_per_s, ratio (to fp32 in the same turn) with quartiles,
    computed_in (the number of products by format), machine.
    """
    on_cpu = quick or device_of().type == "cpu"
    turns = {} if on_cpu else FULL_SIZE_TURNS
    tables = [_benchmark(base_setting(name, quick, **turns)) for name in catalogue.NETWORKS]
    return pd.concat(tables, ignore_index=True)


def _benchmark(base: Setting) -> pd.DataFrame:
    device = device_of()
    torch.backends.cudnn.benchmark = True  # as in `measure_workload`, and in the published tables
    settings = combinations(base, precision=precisions())
    workloads = [Workload(setting, device) for setting in settings]
    formats = [workload.count_formats() for workload in workloads]
    count = base.warmup + base.iterations
    turns = np.array([[_time_step(workload) for workload in workloads] for _ in range(count)])
    turns = turns[base.warmup :]  # [turn, precision]
    ratios = np.percentile(turns[:, :1] / turns, [50, 25, 75], axis=0)
    speeds = [speed_quartiles(times, base.batch)["images_per_s"] for times in turns.T]
    columns = {
        "network": base.network,
        "precision": [setting.precision for setting in settings],
        "images_per_s": speeds,
        **dict(zip(("ratio", "ratio_q1", "ratio_q3"), ratios)),
        "computed_in": [", ".join(f"{n} × {kind}" for kind, n in f.items()) for f in formats],
        "machine": Recorder(None).describe(device)["machine"],
    }
    return pd.DataFrame(columns)


def _time_step(workload: Workload) -> float:
    with number_format(workload.device, workload.setting.precision):
        begin = time.perf_counter()
        workload.step()
        workload.wait()
        return time.perf_counter() - begin
