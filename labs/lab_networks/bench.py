"""The benchmark: steps of a network in one precision and layout, timed, with their evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from course.analysis.timing import number_format
from course.runs.run import runs_root
from course.training import memory
from course.training.clocks import clock_for, speed_quartiles
from course.training.models import parameter_count
from course.training.precision import autocast, has_units
from course.training.recorder import Recorder
from labs.lab_networks import catalogue, evidence

CHOICES = {
    "precision": ("fp32", "tf32", "fp16", "bf16"),
    "mode": ("train", "infer"),
    "layout": ("contiguous", "channels_last"),
}
# Sizes for which a CPU needs seconds.
QUICK = {
    "ssd300": {"batch": 2},
    "unet3d": {"batch": 1, "px": 64},
    "resnet50": {"batch": 8, "px": 112},
}
CPU_STEPS = {"warmup": 1, "iterations": 3}


@dataclass(frozen=True)
class Setting:
    """A setting to measure: one row of the table."""

    network: str = "resnet50"
    precision: str = "fp32"
    mode: str = "train"
    layout: str = "contiguous"
    compile: bool = False
    batch: int = 0  # per GPU; 0: the published benchmark's
    px: int = 0  # per side of an image or volume; 0: the network's
    gpus: int = 1
    warmup: int = 100
    iterations: int = 300
    traced: bool = True  # on a GPU, one further step is traced

    def __post_init__(self) -> None:
        network = catalogue.get(self.network)
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name}={value!r}: choose {' or '.join(choices)}")
        if network.fixed and self.px not in (0, network.px):
            raise ValueError(f"px={self.px}: {self.network} needs {network.px}, so leave it out")
        px, multiple = self.px or network.px, network.multiple
        if px % multiple or px < 2 * multiple:
            raise ValueError(f"px={px}: {self.network} needs {2 * multiple}, {3 * multiple}, …")
        object.__setattr__(self, "batch", self.batch or network.batch_size)
        object.__setattr__(self, "px", px)


def bench(setting: Setting, log: Path | None = None) -> dict[str, Any]:
    """Measure a setting here or on several GPUs; return the row, as `measure` does.

    On a machine without GPUs, CPU processes with one thread each replace them.
    """
    if setting.gpus == 1:
        return measure(setting, log)
    from course.analysis.ranks import on_ranks

    backend = "nccl" if torch.cuda.device_count() >= setting.gpus else "gloo"
    return on_ranks(measure_rank, setting.gpus, setting, log, backend=backend)[0]


def measure_rank(rank: int, ranks: int, setting: Setting, log: Path | None) -> dict[str, Any]:
    """Measure in one of several processes."""
    return measure(setting, log)


def measure(setting: Setting, log: Path | None = None) -> dict[str, Any]:
    """Time a setting in this process.

    Returns the row: the setting's fields; images_per_s and step_s with quartiles; first_loss and
    last_loss; formats (number of products by format); on a GPU peak_gib and what
    `evidence.trace_step` returns; of several ranks weights_apart and first_losses.

    Args:
        log: a file to which a JSON line is added per step, as in the published benchmark.

    Raises:
        ValueError: TF32 on a device without it.
    """
    device = device_of()
    torch.backends.cudnn.benchmark = True
    with number_format(device, setting.precision):
        return _measure(Workload(setting, device), log)


def _measure(workload: Workload, log: Path | None) -> dict[str, Any]:
    setting, device = workload.setting, workload.device
    formats = workload.count_formats()
    for _ in range(setting.warmup):
        workload.step()
    workload.wait()
    # Only of the timed steps, without the kernels that were tried. An unused GPU has no peak.
    memory.reset_peak(device)
    seconds = _time_steps(workload)
    row = asdict(setting) | {"formats": formats}
    row |= speed_quartiles(seconds, workload.images)
    row |= {"parameters": parameter_count(workload.network)}
    row |= {"first_loss": workload.losses[0], "last_loss": workload.losses[-1]}
    # On a CPU, the peak would include the rest of the process.
    row["peak_gib"] = None if device.type == "cpu" else memory.peak(device)["peak_gib"]
    if setting.traced and device.type == "cuda":
        row |= evidence.trace_step(workload.step)
    if _ranks() > 1:
        row |= _compare_ranks(workload)
    row["machine"] = Recorder(None).describe(device)["machine"]
    if log and _rank() == 0:
        _write(log, row, seconds, workload.images)
    return row


def _compare_ranks(workload: Workload) -> dict[str, Any]:
    """Return evidence that ranks train one network on different images: weights and losses."""
    weights = float(sum(w.detach().double().sum() for w in workload.network.parameters()))
    values: list[Any] = [None] * _ranks()
    distributed.all_gather_object(values, (weights, workload.losses[0]))
    sums, losses = zip(*values)
    return {"weights_apart": max(sums) - min(sums), "first_losses": losses}


def device_of() -> torch.device:
    """Return this machine's accelerator, if it has one; with several GPUs, the rank's.

    A GPU has its index, because `torch.cuda.set_device` needs it.
    """
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None or (distributed.is_initialized() and distributed.get_backend() == "gloo"):
        return torch.device("cpu")
    return torch.device(device.type, _rank()) if device.type == "cuda" else device


def _rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def _ranks() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


class Workload:
    """A network, its batch, and the step that is timed."""

    def __init__(self, setting: Setting, device: torch.device) -> None:
        self.setting, self.device = setting, device
        self.spec = catalogue.get(setting.network)
        torch.manual_seed(0)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with device:
            self.network = self.spec.build()
        self.layout = torch.contiguous_format
        if setting.layout == "channels_last":
            formats = {2: torch.channels_last, 3: torch.channels_last_3d}
            self.layout = formats[self.spec.dims]
            self.network.to(memory_format=self.layout)
        self.network.train(setting.mode == "train")
        self.model: nn.Module | Callable = self.network
        if distributed.is_initialized():
            # Gradients stay in the buckets; copying each back would be one more call.
            self.model = DistributedDataParallel(self.network, gradient_as_bucket_view=True)
        if setting.compile:
            self.model = torch.compile(self.model)
        self.optimizer = torch.optim.SGD(self.network.parameters(), self.spec.lr, momentum=0.9)
        scales = setting.precision == "fp16" and setting.mode == "train"
        self.scaler = torch.amp.GradScaler(device.type, enabled=scales)
        generator = torch.Generator().manual_seed(_rank())
        inputs, targets = self.spec.random_batch(setting.batch, setting.px, generator)
        self.inputs = inputs.to(device, memory_format=self.layout)
        several = isinstance(targets, tuple)
        self.targets = tuple(t.to(device) for t in targets) if several else targets.to(device)
        self.images = setting.batch * _ranks()  # of one step on all ranks
        self.step = self._train if setting.mode == "train" else self._infer
        self._losses: list[torch.Tensor] = []

    def _train(self) -> None:
        with autocast(self.device, self.setting.precision):
            loss = self.spec.loss(self.model(self.inputs), self.targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._losses.append(loss.detach())

    def _infer(self) -> None:
        with torch.inference_mode(), autocast(self.device, self.setting.precision):
            self.model(self.inputs)

    def count_formats(self) -> dict[str, int]:
        """Count the network's products by output format, in a first forward pass."""
        training = self.network.training
        cast = autocast(self.device, self.setting.precision)
        # In evaluation, BatchNorm does not change its statistics.
        with evidence.count_formats(self.network.eval()) as counts, torch.inference_mode(), cast:
            self.network(self.inputs)
        self.network.train(training)
        return dict(counts)

    def wait(self) -> None:
        """Wait until the device has done all steps."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    @property
    def losses(self) -> list[float]:
        """The losses of the steps so far; NaN in inference."""
        return [float(loss) for loss in self._losses] or [float("nan")]


def _time_steps(workload: Workload) -> np.ndarray:
    """Return the seconds of each step."""
    clock = clock_for(workload.device)
    marks = [clock.mark()]
    for _ in range(workload.setting.iterations):
        workload.step()
        marks.append(clock.mark())
    workload.wait()
    return np.array([clock.seconds(*pair) for pair in zip(marks, marks[1:])])


def _write(log: Path, row: dict[str, Any], seconds: np.ndarray, images: int) -> None:
    """Append the setting, each step and the result to a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    steps = [
        {"type": "LOG", "step": number, "data": {"step_s": step, "images_per_s": images / step}}
        for number, step in enumerate(seconds.tolist())
    ]
    setting = {name: row[name] for name in asdict(Setting())}
    lines = [{"type": "PARAMETER", "data": setting}, *steps, {"type": "RESULT", "data": row}]
    with log.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def log_file() -> Path:
    """Return the log of `course bench`, in the folder of the runs."""
    return runs_root() / "bench.jsonl"


def precisions() -> list[str]:
    """Return the precisions for which this machine has units."""
    device = device_of()
    names = [name for name in ("fp32", "fp16", "bf16") if has_units(device, name)]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        names.insert(1, "tf32")
    return names


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
