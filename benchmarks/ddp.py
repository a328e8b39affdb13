"""Measure what DDP costs: every rank without DDP, and all ranks under DDP, in turns in one job.

    torchrun --nproc-per-node 4 benchmarks/ddp.py --compile --out FILE
    torchrun --nproc-per-node 2 benchmarks/ddp.py --model resnet18 --image-px 64 \
        --batch-size 8 --steps 2

All variants train ResNet-50 as rung `fused` does, on one synthetic batch per rank. They take turns,
a block of steps each, so machine-wide changes affect all of them. "alone" runs on all ranks at
once, without messages: any additional time is due to DDP, not to unequal GPUs or to two GPUs
drawing more power than one. A block ends when its slowest rank has finished and the device is
synchronised. The output is one line of JSON per variant: step_ms, and its ratio to alone, both as
quartiles of the turns.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from course.data.loader import SYNTHETIC_CLASSES
from course.training import models
from course.training.recorder import cpu_name, device_name

VIEW, STILL = {"gradient_as_bucket_view": True}, {"broadcast_buffers": False}
VARIANTS = {
    "alone": None,
    "DDP as it comes": {},
    "gradients stay in the buckets": VIEW,
    "and no broadcast of buffers": VIEW | STILL,
}
WARMUP = 10  # steps before the first turn; the first step of a compiled model takes a minute


def training(options: dict | None, form: str, args: argparse.Namespace) -> Iterator[None]:
    """Take one training step per `next`."""
    device = args.device
    torch.manual_seed(0)
    model = models.create(args.model, SYNTHETIC_CLASSES)
    model = model.to(device, memory_format=torch.channels_last).train()
    if options is not None:
        model = DDP(model, **options)
    if form == "compiled":
        model = torch.compile(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    images = torch.randn(args.batch_size, 3, args.image_px, args.image_px, device=device)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(SYNTHETIC_CLASSES, (args.batch_size,), device=device)
    on_cpu = device.type == "cpu"  # not every CPU computes in bf16
    autocast = nullcontext() if on_cpu else torch.autocast(device.type, torch.bfloat16)
    while True:
        with autocast:
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def block_s(steps: Iterator[None], number: int, wait: Callable[[], None]) -> float:
    """Return the seconds of a block of steps on this rank; it starts when all ranks are ready."""
    distributed.barrier()
    wait()
    begin = time.perf_counter()
    for _ in range(number):
        next(steps)
    wait()
    return time.perf_counter() - begin


def measure(form: str, args: argparse.Namespace) -> list[dict]:
    """Measure all variants in turns; return a row for each."""
    on_cpu = args.device.type == "cpu"
    wait = (lambda: None) if on_cpu else torch.accelerator.synchronize
    running = {name: training(options, form, args) for name, options in VARIANTS.items()}
    for steps in running.values():
        block_s(steps, 1 if on_cpu else WARMUP, wait)
    block_times = [
        [block_s(steps, args.steps, wait) for steps in running.values()] for _ in range(args.turns)
    ]
    slowest = torch.tensor(block_times, device=args.device)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    step_ms = slowest.cpu().numpy() / args.steps * 1e3  # turns × variants
    ratio = step_ms[:, :1] / step_ms
    return [
        {
            "variant": name,
            "form": form,
            "compiled": form == "compiled",
            "step_ms": quartiles(step_ms[:, at]),
            "ratio": quartiles(ratio[:, at]),
            "turns": args.turns,
            "steps_a_turn": args.steps,
        }
        for at, name in enumerate(VARIANTS)
    ]


def quartiles(values: np.ndarray) -> list[float]:
    """Return the three quartiles, rounded to four digits."""
    return [float(f"{value:.4g}") for value in np.percentile(values, [25, 50, 75])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--image-px", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=256, help="of each rank")
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="the compiled variants, too")
    parser.add_argument("--out", type=Path, help="also write the lines into this file")
    args = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        parser.error("start it with torchrun, as this file's first lines say")
    args.device = torch.device("cpu")
    if accelerator := torch.accelerator.current_accelerator(check_available=True):
        args.device = torch.device(accelerator.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(args.device.index)
    distributed.init_process_group()
    rank, on_cpu = distributed.get_rank(), args.device.type == "cpu"
    environment = {
        "machine": cpu_name() if on_cpu else device_name(args.device),
        "ranks": distributed.get_world_size(),
        "model": args.model,
        "image_px": args.image_px,
        "batch_size": args.batch_size,
        "torch": torch.__version__,
    }
    for form in ["eager", "compiled"][: 1 + args.compile]:
        lines = [json.dumps(row | environment) for row in measure(form, args)]
        if rank == 0:
            print(*lines, sep="\n", flush=True)
        if rank == 0 and args.out:
            with args.out.open("a") as file:
                print(*lines, sep="\n", file=file)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
