"""How fast ResNet-50 answers on a GPU, in each way and batch: measured there, read anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import pandas as pd
import torch
from torch import nn

from course.runs import once
from course.topics.inference.ladder import compared, of_way
from course.topics.inference.latency import rates
from course.topics.inference.modes import in_modes
from course.topics.inference.ways import LADDER, Way, images_for, prepared, ready
from course.training import models
from course.training.precision import set_tf32

COMMAND = (
    "python -m benchmarks.side_labs: ResNet-50 with 1,000 classes, random weights and images; "
    "time from a call until the device is done, one call after the other; cudnn.benchmark on; "
    "images lie on the device, cast and laid out"
)
NETWORK, PX = "resnet50", 224
TWO = (1, 256)  # one image, and many
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
COMPILED = (1, 16, 256)  # each is compiled anew, which takes its time
EAGER = Way("bf16", channels_last=True, folded=True)
FLOATS = {
    "TF32": Way(),
    "fp16": Way("fp16"),
    "bf16": Way("bf16"),
    "fp16, channels_last": Way("fp16", channels_last=True),
}


def measure(
    device: str = "cuda",
    network: str = NETWORK,
    px: int = PX,
    batches: tuple[int, ...] = BATCHES,
    compiled: tuple[int, ...] = COMPILED,
    budget_s: float = 0.5,
) -> dict[str, Any]:
    """Time all of it on this machine's device; what a machine's index keeps as "inference".

    A part that fails leaves a row with what was raised, and the others go on.
    """
    torch.manual_seed(0)
    model = _with_statistics(models.create(network, 1000), px).to(device)
    rows: list[dict[str, Any]] = []
    two = (batches[0], max(each for each in batches if each <= TWO[-1]))
    parts = {
        "mode": lambda: _modes(model, px, two, budget_s),
        "ladder": lambda: _ladder(model, px, two, budget_s),
        "batch": lambda: _batches(model, px, batches, compiled, budget_s),
    }
    with _choosing():
        for part, make in parts.items():
            began = perf_counter()
            try:
                for row in make():
                    rows.append({"part": part, **row})
                    print(json.dumps(rows[-1]), flush=True)
            except Exception as error:  # the rest is worth having
                rows.append({"part": part, "failed": f"{type(error).__name__}: {error}"[:300]})
                print(json.dumps(rows[-1]), flush=True)
            print(f"{part}: {perf_counter() - began:.0f} s", flush=True)
    return {"command": COMMAND, "rows": rows}


def recorded(machine: str) -> pd.DataFrame:
    """What was measured on a machine, a row a way and a batch.

    Columns: part ("mode", "ladder", or "batch", whose "compiled" is a CUDA graph, too), way, batch,
    p50_s, p99_s, calls, images_per_s, peak_gib (allocated at most, above what the network takes;
    "mode"), error (of the scores, relative to fp32's largest; "ladder"), made_s (until it could
    answer, where it is compiled), faster (than fp32, with the same batch; "ladder"), machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = once.table(machine, "inference")
    if "failed" in table:
        table = table[table["failed"].isna()].drop(columns="failed")
    table = rates(table)
    return table.join(compared(table[table["part"] == "ladder"])["faster"])


def _with_statistics(model: nn.Module, px: int) -> nn.Module:
    """The network with statistics of random images, so that its scores are neither 0 nor huge."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.ones_(part.weight)  # the last of each block begins at zero
            part.momentum = None  # the mean of all batches
    with torch.no_grad():
        model.train()(images_for(model, 8, px, seed=1))
    return model.eval()


def _modes(
    model: nn.Module, px: int, batches: tuple[int, ...], budget_s: float
) -> Iterator[dict[str, Any]]:
    """In training's mode and evaluation's, with a graph of autograd and without."""
    network = prepared(model, Way("bf16", channels_last=True))
    for batch in batches:
        images = images_for(network, batch, px).bfloat16()
        yield from in_modes(network, images.to(memory_format=torch.channels_last), budget_s)


def _ladder(
    model: nn.Module, px: int, batches: tuple[int, ...], budget_s: float
) -> Iterator[dict[str, Any]]:
    for batch in batches:
        images = images_for(model, batch, px)
        right = ready(model, images, Way())().double().cpu()
        for name, way in {**LADDER, **FLOATS}.items():
            if way.graph and images.device.type != "cuda":
                continue
            set_tf32(name == "TF32")
            try:
                yield {"way": name, "batch": batch} | of_way(model, images, way, right, budget_s)
            finally:
                set_tf32(False)


def _batches(
    model: nn.Module,
    px: int,
    batches: tuple[int, ...],
    compiled: tuple[int, ...],
    budget_s: float,
) -> Iterator[dict[str, Any]]:
    """Latency by batch: kernel by kernel, as a graph, and as a graph of compiled kernels."""
    on_cuda = next(model.parameters()).device.type == "cuda"
    graph = Way("bf16", channels_last=True, folded=True, graph=True)
    ways = {"eager": (EAGER, batches)}
    if on_cuda:
        ways |= {"CUDA graph": (graph, batches), "compiled": (LADDER["+ CUDA graph"], compiled)}
    for name, (way, some) in ways.items():
        for batch in some:
            images = images_for(model, batch, px)
            yield {"way": name, "batch": batch} | of_way(model, images, way, None, budget_s)


@contextmanager
def _choosing() -> Iterator[None]:
    """cuDNN tries its algorithms on each new shape; fp32 is fp32."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    set_tf32(False)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
