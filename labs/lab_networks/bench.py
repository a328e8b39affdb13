"""The benchmark: steps of a network in one precision and layout, timed, with their evidence."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from course.analysis.roofline.timing import number_format
from course.runs.run import runs_root
from course.training import memory
from course.training.clocks import clock_for, speed_quartiles
from course.training.models import parameter_count
from course.training.precision import autocast, has_units
from course.training.recorder import Recorder
from labs.lab_networks import catalogue
from labs.lab_networks import formats as seen
from labs.lab_networks.catalogue import Batch, Network

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
MODES = ("train", "infer")
LAYOUTS = ("contiguous", "channels_last")
DATA = ("synthetic", "photographs")
FEWEST = 8  # steps that are timed, however short the time
LOG = "bench.jsonl"
# Sizes at which a processor needs seconds; and how often steps are made where nobody says it.
QUICK = {
    "ssd300": {"batch": 2},
    "unet3d": {"batch": 1, "px": 64},
    "resnet50": {"batch": 8, "px": 112},
}
STEPS = {"cpu": {"warmup": 1, "iterations": 3}}  # elsewhere: as the published benchmark


@dataclass(frozen=True)
class Setting:
    """What is measured: one row of the table."""

    network: str = "resnet50"
    precision: str = "fp32"
    mode: str = "train"
    layout: str = "contiguous"
    compile: bool = False
    batch: int = 0  # of each GPU; 0: the published benchmark's
    px: int = 0  # a side of an image or volume; 0: the network's
    data: str = "synthetic"
    workers: int = 0  # that load photographs
    gpus: int = 1
    warmup: int = 100
    iterations: int = 300
    seconds: float = 0.0  # fewer iterations, where they would take longer; 0: all of them
    tries: bool = True  # cuDNN tries its kernels in the first step, instead of choosing by rule
    traced: bool = True  # one further step is, on a GPU

    def __post_init__(self) -> None:
        network = catalogue.get(self.network)
        known = {"precision": PRECISIONS, "mode": MODES, "layout": LAYOUTS, "data": DATA}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                given = getattr(self, name)
                raise ValueError(f"{name}={given!r}: choose {' or '.join(choices)}")
        if network.fixed and self.px not in (0, network.px):
            raise ValueError(f"{self.network} sees {network.px} pixels a side: leave --px out")
        if self.seconds and self.gpus > 1:
            raise ValueError("seconds=… is for one GPU: several must agree on their steps")
        px, multiple = self.px or network.px, network.multiple
        if px % multiple or px < 2 * multiple:
            raise ValueError(f"px={px}: {self.network} takes {2 * multiple}, {3 * multiple}, …")
        object.__setattr__(self, "batch", self.batch or network.batch_size)
        object.__setattr__(self, "px", px)


def measure(setting: Setting, log: Path | None = None, device: str = "") -> dict[str, Any]:
    """Time the setting in this process, one of `setting.gpus` if it has joined a group.

    Returns the row: the setting's fields, images_per_s and step_s with quartiles, timed (steps),
    first_loss and last_loss, formats (how many products gave which), took_s (what the measurement
    itself took, in parts), and on a GPU peak_gib, tensor_core_share and where its time went
    (`seen.on_gpu`); of several ranks weights_apart and first_losses.

    Args:
        log: a file to which a JSON line is added a step, as the published benchmark's logger does.
        device: "cpu", say; without, the accelerator, if there is one.

    Raises:
        ValueError: TF32 where there is none.
    """
    place = device_of(device)
    torch.backends.cudnn.benchmark = setting.tries
    with number_format(place, setting.precision):
        return _measured(setting, place, log)


def _measured(setting: Setting, place: torch.device, log: Path | None) -> dict[str, Any]:
    work = Work(setting, place)
    try:
        return _row(work, log)
    finally:
        work.end()


def _row(work: Work, log: Path | None) -> dict[str, Any]:
    setting, place = work.setting, work.device
    stages = [("begin", time.perf_counter())]

    def passed(stage: str) -> None:
        stages.append((stage, time.perf_counter()))

    found = work.evidence()
    passed("first_pass")
    count = _warmed(work)
    passed("warm_up")
    # Of the steps alone, without the kernels that were tried; and a GPU that is not yet in use has
    # no peak to reset.
    memory.reset_peak(place)
    seconds = _timed(work, count)
    passed("timed")
    ranks = distributed.get_world_size() if distributed.is_initialized() else 1
    row = asdict(setting) | {"timed": count} | speed_quartiles(_rounds(work, seconds), work.images)
    row |= {"parameters": parameter_count(work.plain), "first_loss": work.losses[0]}
    # Of a CPU it would be that of all that this process has ever done.
    peak = None if place.type == "cpu" else memory.peak(place)["peak_gib"]
    row |= {"peak_gib": peak, "last_loss": work.losses[-1]} | found
    row |= seen.on_gpu(work.step) if setting.traced and place.type == "cuda" else {}
    row |= _together(work) if ranks > 1 else {}
    passed("traced")
    row["took_s"] = {now[0]: now[1] - before[1] for before, now in zip(stages, stages[1:])}
    row["machine"] = Recorder(None).describe(place)["machine"]
    if log and _rank() == 0:
        write(log, row, seconds, work.images)
    return row


def _together(work: Work) -> dict[str, Any]:
    """Evidence that ranks trained one network on different images: their weights and losses."""
    weights = float(sum(each.detach().double().sum() for each in work.plain.parameters()))
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, (weights, work.losses[0]))
    sums, losses = zip(*found)
    return {"weights_apart": max(sums) - min(sums), "first_losses": losses}


def device_of(name: str = "") -> torch.device:
    """The device of this name, or this machine's accelerator; of several GPUs this rank's own.

    A GPU has its index: `torch.cuda.set_device` takes no other.
    """
    found = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    place = torch.device(name) if name else found
    return torch.device(place.type, _rank()) if place.type == "cuda" else place


def _rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


class Work:
    """A network, what it sees, and the step that is timed."""

    def __init__(self, setting: Setting, device: torch.device) -> None:
        self.setting, self.device = setting, device
        self.network: Network = catalogue.get(setting.network)
        torch.manual_seed(0)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self.layout = _layout(setting, self.network)
        with device:
            self.plain = self.network.build()
        if setting.layout != "contiguous":
            _lay_out(self.plain, self.layout, self.network.dims + 2)
        self.plain.train(setting.mode == "train")
        self.model: nn.Module | Callable = self.plain
        if distributed.is_initialized():
            # Gradients stay where they were averaged: to copy each back is a call of its own.
            self.model = DistributedDataParallel(self.plain, gradient_as_bucket_view=True)
        if setting.compile:
            self.model = torch.compile(self.model)
        self.optimizer = torch.optim.SGD(self.plain.parameters(), self.network.lr, momentum=0.9)
        half = setting.precision == "fp16" and setting.mode == "train"
        self.scaler = torch.amp.GradScaler(device.type, enabled=half)
        self.batches = self._batches()
        self.step = self._train if setting.mode == "train" else self._infer
        self._losses: list[torch.Tensor] = []

    @property
    def images(self) -> int:
        """Of one step, those of all ranks together."""
        ranks = distributed.get_world_size() if distributed.is_initialized() else 1
        return self.setting.batch * ranks

    def _batches(self) -> Generator[Batch]:
        own = self.setting
        if own.data == "photographs":
            loaded = self.network.loaded(own.batch, own.px, own.workers)
            yield from map(self._moved, catalogue.batches(loaded))
        draw = torch.Generator().manual_seed(_rank())
        batch = self._moved(self.network.made(own.batch, own.px, draw))
        while True:
            yield batch

    def _moved(self, batch: Batch) -> Batch:
        seen_, wanted = batch
        several = isinstance(wanted, tuple | list)
        wanted = tuple(map(self._to_device, wanted)) if several else self._to_device(wanted)
        return self._to_device(seen_).contiguous(memory_format=self.layout), wanted

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)

    def _train(self) -> None:
        given, wanted = next(self.batches)
        with autocast(self.device, self.setting.precision):
            found = self.model(given)
            loss = self.network.loss(found, wanted)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._losses.append(loss.detach())

    def _infer(self) -> None:
        given, _ = next(self.batches)
        with torch.inference_mode(), autocast(self.device, self.setting.precision):
            self.model(given)

    def evidence(self) -> dict[str, Any]:
        """The formats in which the network's products come out, in a first forward pass."""
        given, _ = next(self.batches)
        # Without gradients, and without what BatchNorm learns from a batch.
        training = self.plain.training
        cast = autocast(self.device, self.setting.precision)
        with seen.formats(self.plain.eval()) as found, torch.inference_mode(), cast:
            self.plain(given)
        self.plain.train(training)
        return {"formats": dict(found)}

    def end(self) -> None:
        """End the workers of a loader.

        Left to Python's collector they would be waited for, five seconds each: it takes the
        queues by which they are told before the iterator that tells them.
        """
        self.batches.close()

    @property
    def losses(self) -> list[float]:
        """Of the steps so far; none in inference."""
        return [float(each) for each in self._losses] or [float("nan")]


def _layout(setting: Setting, network: Network) -> torch.memory_format:
    if setting.layout == "contiguous":
        return torch.contiguous_format
    return torch.channels_last if network.dims == 2 else torch.channels_last_3d


def _lay_out(net: nn.Module, layout: torch.memory_format, dims: int) -> None:
    """As `net.to(memory_format=layout)`, but replacing weights: fake ones cannot be moved."""
    for module in net.modules():
        for name, weights in [*module.named_parameters(recurse=False)]:
            if weights.dim() == dims:
                laid = weights.detach().contiguous(memory_format=layout)
                module.register_parameter(name, nn.Parameter(laid))


def _warmed(work: Work) -> int:
    """Make the steps of the warm-up; how many are to be timed, as the last one tells."""
    own = work.setting
    for _ in range(own.warmup - 1):
        work.step()
    _wait(work.device)
    begin = time.perf_counter()
    work.step()
    _wait(work.device)
    if not own.seconds:
        return own.iterations
    fits = int(own.seconds / (time.perf_counter() - begin))
    return max(min(FEWEST, own.iterations), min(own.iterations, fits))


def _timed(work: Work, count: int) -> np.ndarray:
    """The seconds of each of so many steps."""
    clock = clock_for(work.device)
    marks = [clock.mark()]
    for _ in range(count):
        work.step()
        marks.append(clock.mark())
    _wait(work.device)
    return np.array([clock.seconds(*pair) for pair in zip(marks, marks[1:])])


def _rounds(work: Work, seconds: np.ndarray) -> np.ndarray:
    """Of a loader's steps the mean of each round of its workers, seconds; of others each step.

    Workers that began together give their batches at about the same time: then comes a pause. A
    single step would have seen either of them alone.
    """
    workers = work.setting.workers if work.setting.data == "photographs" else 0
    rounds = len(seconds) // max(1, workers)
    if workers < 2 or not rounds:
        return seconds
    return seconds[: rounds * workers].reshape(rounds, workers).mean(1)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def write(log: Path, row: dict[str, Any], seconds: np.ndarray, images: int) -> None:
    """A line that says what is measured, one a step, and one with the result."""
    log.parent.mkdir(parents=True, exist_ok=True)
    setting = {name: row[name] for name in asdict(Setting())}
    steps = [
        {"type": "LOG", "step": number, "data": {"step_s": each, "images_per_s": images / each}}
        for number, each in enumerate(seconds.tolist())
    ]
    lines = [{"type": "PARAMETER", "data": setting}, *steps, {"type": "RESULT", "data": row}]
    with log.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in lines)


def log_file() -> Path:
    """Where `course bench` writes, beside the runs."""
    return runs_root() / LOG


def bench(setting: Setting, log: Path | None = None, device: str = "") -> dict[str, Any]:
    """Measure a setting, here or on several GPUs: its row, as `measure` returns it.

    On a machine without GPUs several processes stand for them, with one thread each.
    """
    if setting.gpus == 1:
        return measure(setting, log, device)
    from labs.day4_2_fsdp.processes import on_ranks

    nccl = torch.cuda.device_count() >= setting.gpus and device != "cpu"
    given = (asdict(setting), str(log) if log else "", "" if nccl else "cpu")
    rows = on_ranks(_of_rank, setting.gpus, *given, backend="nccl" if nccl else "gloo")
    return rows[0]


def _of_rank(rank: int, ranks: int, setting: dict[str, Any], log: str, device: str) -> Any:
    return measure(Setting(**setting), Path(log) if log else None, device)


def precisions() -> list[str]:
    """Those for which this machine has units."""
    place = device_of()
    return [name for name in PRECISIONS if _has(place, name)]


def _has(place: torch.device, precision: str) -> bool:
    if precision == "tf32":
        return place.type == "cuda" and torch.cuda.get_device_capability(place) >= (8, 0)
    return has_units(place, precision)


def base(network: str, quick: bool = False, **own: Any) -> Setting:
    """A setting with as many steps as suit this machine; a quick one takes a processor seconds."""
    catalogue.get(network)
    small = QUICK[network] if quick else {}
    few = STEPS.get("cpu" if quick else device_of().type, {})
    return Setting(network, **{**small, **few, **own})


def settings(base: Setting, **choices: list[Any]) -> list[Setting]:
    """The setting with each combination of choices, the last of them changing fastest."""
    found = [base]
    for name, values in choices.items():
        found = [replace(each, **{name: value}) for each in found for value in values]
    return found
