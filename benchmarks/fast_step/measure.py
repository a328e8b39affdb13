"""Measures the fast step beside stock PyTorch, in one run on one GPU, and checks its gradients.

    python benchmarks/fast_step/measure.py            # JSON lines on the standard output

Three ways to train the same ResNet-50 on one synthetic batch that stays on the device: eager with
autocast, channels last and fused SGD; the same with torch.compile(mode="reduce-overhead"); and the
same with the network converted to the algebra's kernels ("fast"). Throughput is the median over
windows of steps, with the lowest and the highest; joules are the GPU's own counter's. Peak memory
of reduce-overhead is null: the allocator does not count its graphs' pool; reserved memory has it.
The losses are those of the first steps: a run on NaN is fast and draws little power, so look at
them first. Where no choices of tiles are known for this GPU, the first step times all of them.

How long until it is ready, in a first process, whose kernels no cache has:

    TRITON_CACHE_DIR=$(mktemp -d) python benchmarks/fast_step/measure.py --ways fast --no-gradients

ready_s is all from there to the end of the twelfth step, and of it network_s goes to the network
and CUDA's beginning, first_step_s to the first step, and compiled tells what of that was Triton's;
imports_s came before. With --one-by-one each kernel is compiled when it is first launched.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import psutil
import torch
import torchvision
from torch import nn

from course.training.energy import EnergyMeter, counter
from course.training.precision import set_tf32
from fast_resnet import convert
from fast_resnet import model as fast_model
from fast_resnet.tuning import SHIPPED

IMPORTS_S = time.time() - psutil.Process().create_time()  # since this process began
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
FIRST_STEPS = 12
SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
Step = Callable[[], torch.Tensor]


def make_model(device: torch.device) -> nn.Module:
    """ResNet-50 with fresh weights, the same every time."""
    torch.manual_seed(0)
    return torchvision.models.resnet50().to(device, memory_format=torch.channels_last)


def make_batch(batch: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise [batch, 3, 224, 224] and labels, on the device."""
    generator = torch.Generator(device).manual_seed(1)
    images = torch.randn(batch, 3, 224, 224, device=device, generator=generator)
    labels = torch.randint(0, 1000, (batch,), device=device, generator=generator)
    return images.to(memory_format=torch.channels_last), labels


def make_step(way: str, arguments: argparse.Namespace, device: torch.device) -> Step:
    """A step as the course's script has it: only the network differs, or who runs it."""
    model, (images, labels) = make_model(device), make_batch(arguments.batch, device)
    if way == "fast":
        model = convert(model)
    dtype, criterion = HALF[arguments.dtype], nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), **SETTINGS, fused=True)
    # When GradScaler skips the first step, fused SGD leaves its momenta uninitialised: NaN later.
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)

    def forward(images, labels):
        with torch.autocast("cuda", dtype):
            return criterion(model(images), labels)

    if way == "compile":
        forward = torch.compile(forward, mode="reduce-overhead")

    def step():
        loss = forward(images, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    step.model = model
    return step


def first_steps(step: Step, number: int) -> tuple[list[float], float]:
    """Losses of the first steps, and the peak GiB of the last of them."""
    losses = [float(step()) for _ in range(number - 1)]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    losses.append(float(step()))
    return losses, torch.cuda.max_memory_allocated() / 2**30


def windows(step: Step, arguments: argparse.Namespace, device: torch.device) -> dict:
    """images/s over windows of steps, watts and joules per image over all of them."""
    for _ in range(5):
        step()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(arguments.windows + 1)]
    torch.cuda.synchronize()
    energy = EnergyMeter(counter(device))
    energy.start()
    marks[0].record()
    for mark in marks[1:]:
        for _ in range(arguments.steps):
            loss = step()
        mark.record()
    torch.cuda.synchronize()
    energy.stop()
    images = arguments.batch * arguments.steps
    speeds = [images / a.elapsed_time(b) * 1e3 for a, b in zip(marks, marks[1:])]
    overall = images * arguments.windows / marks[0].elapsed_time(marks[-1]) * 1e3
    return {
        "images_per_s": float(np.median(speeds)),
        "images_per_s_low": min(speeds),
        "images_per_s_high": max(speeds),
        "last_loss": float(loss),
        **energy.summary(overall),
    }


def measure(way: str, arguments: argparse.Namespace, device: torch.device) -> dict:
    """The record of one way to train: "eager", "compile" or "fast"."""
    begin = time.perf_counter()
    set_tf32(True)
    step = make_step(way, arguments, device)
    made = time.perf_counter()
    first_loss = float(step())
    stepped = time.perf_counter()
    losses, peak_gib = first_steps(step, FIRST_STEPS - 1)
    ready_s = time.perf_counter() - begin
    compiled = [asdict(each) for each in step.model._step.reports] if way == "fast" else []
    if way == "fast" and arguments.choices:
        chosen = step.model._step.saved.chosen
        arguments.choices.write_text(json.dumps(chosen, indent=1) + "\n")
    return {
        "record": "speed",
        "way": way,
        "dtype": arguments.dtype,
        "batch": arguments.batch,
        **windows(step, arguments, device),
        "peak_gib": None if way == "compile" else peak_gib,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "ready_s": ready_s,
        "network_s": made - begin,
        "first_step_s": stepped - made,
        "compiled": compiled,  # in the first step, unless it was one by one
        "losses": [first_loss, *losses],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ways",
        nargs="+",
        default=["eager", "compile", "fast"],
        choices=["eager", "compile", "fast"],
    )
    parser.add_argument("--dtype", choices=HALF, default="fp16")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20, help="of a window")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--no-gradients", action="store_true", help="leave out the gradient check")
    parser.add_argument("--tune", action="store_true", help="time all tiles, known or not")
    parser.add_argument(
        "--choices", type=Path, help="write the tiles that were chosen to this file"
    )
    parser.add_argument(
        "--one-by-one", action="store_true", help="compile kernels when they are first launched"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    fast_model.PRECOMPILE = not arguments.one_by_one
    if not torch.cuda.is_available() or torch.version.cuda is None:
        sys.exit(
            "This measures an NVIDIA GPU and found none. Without one, see the algebra at work:\n"
            "    python -m fast_resnet.formulas"
        )
    device = torch.device("cuda", torch.cuda.current_device())
    name = torch.cuda.get_device_name(device)
    if arguments.tune:  # forget what is known, for this process alone
        SHIPPED.clear()
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    started = {"cores": len(os.sched_getaffinity(0)), "imports_s": IMPORTS_S}
    print(json.dumps({"record": "machine", "gpu": name, **versions, **started}), flush=True)
    for way in arguments.ways:
        print(json.dumps(measure(way, arguments, device)), flush=True)
        torch.compiler.reset()  # lets go of its graphs' pool, which the next peak would count
        gc.collect()
        torch.cuda.empty_cache()
    if not arguments.no_gradients:
        from gradients import check

        model, (images, labels) = make_model(device), make_batch(arguments.batch, device)
        for record in check(model, images, labels, HALF[arguments.dtype]):
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
