"""Time training steps of torchvision's ResNets: eager, compiled and by fast_resnet.

    python fast_resnet/benchmarks/measure.py --out measured.jsonl
    python fast_resnet/benchmarks/measure.py --networks resnet50 --batches 256 --dtypes fp16

A plain PyTorch loop on one GPU with synthetic images that stay on the device: autocast, channels
last, fused SGD, cuDNN's benchmark mode, GradScaler in fp16. The stock ways are eager, torch.compile
(compile) and torch.compile(mode="reduce-overhead") (graphs). For each setting the ways alternate,
a window of steps each; a row has the median window and the lowest and highest in images/s, the peak
in GiB (reserved memory, which includes graphs' pools), joules per image by the GPU's energy counter
(null without nvidia-ml-py), seconds until the tenth step has ended, and the loss, which must not be
NaN. A way that fails has its error instead. With --alone the ways run one after another, each in an
empty memory: four ResNet-152s at batch 256 do not fit together.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from torch.nn.functional import cross_entropy

import fast_resnet

WAYS = ("eager", "compile", "graphs", "fast")
NETWORKS = ("resnet50", "resnet101", "resnet152", "wide_resnet50_2", "resnext50_32x4d")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
FIRST_STEPS = 10


def make_step(way: str, network: str, batch: int, dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    """Build a training step of a fresh network; the step returns its loss."""
    torch.manual_seed(0)
    model = getattr(torchvision.models, network)().cuda()
    model = model.to(memory_format=torch.channels_last)
    if way == "fast":
        model = fast_resnet.convert(model)
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    # When GradScaler skips the first step, fused SGD leaves its momenta uninitialised: NaN later.
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)

    def forward() -> torch.Tensor:
        with torch.autocast("cuda", dtype):
            return cross_entropy(model(images), labels)

    if way in ("compile", "graphs"):
        mode = "reduce-overhead" if way == "graphs" else None
        forward = torch.compile(forward, mode=mode)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = forward()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def energy_j() -> float | None:
    """Return the joules that the GPU has used since its driver was loaded; None if unknown."""
    try:
        import pynvml

        pynvml.nvmlInit()
        # By UUID, because NVML's numbers ignore CUDA_VISIBLE_DEVICES.
        uuid = torch.cuda.get_device_properties().uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
    except Exception:
        return None


class Way:
    """One way to train in one setting, and its measurements."""

    def __init__(self, name: str, network: str, batch: int, dtype: str) -> None:
        self.row = {"way": name, "network": network, "batch": batch, "dtype": dtype}
        self.batch, self.windows, self.joules, self.images = batch, [], 0.0, 0
        torch.cuda.empty_cache()
        before, begin = torch.cuda.memory_reserved(), time.perf_counter()
        self.step = make_step(name, network, batch, DTYPES[dtype])
        for _ in range(FIRST_STEPS):
            self.step()
        torch.cuda.synchronize()
        self.row["ready_s"] = time.perf_counter() - begin
        self.row["reserved_gib"] = (torch.cuda.memory_reserved() - before) / 2**30

    def window(self, seconds: float) -> None:
        """Run steps for about `seconds` and time them together."""
        steps, begin, joules = 0, time.perf_counter(), energy_j()
        while time.perf_counter() - begin < seconds or steps < 4:
            for _ in range(4):
                loss = self.step()
            steps += 4
            torch.cuda.synchronize()
        self.windows.append(steps * self.batch / (time.perf_counter() - begin))
        self.images += steps * self.batch
        if joules is not None:
            self.joules += energy_j() - joules
        self.row["loss"] = float(loss)

    def result(self) -> dict:
        """Return the row with medians."""
        low, high = min(self.windows), max(self.windows)
        median = statistics.median(self.windows)
        speeds = {"images_per_s": median, "images_per_s_low": low, "images_per_s_high": high}
        return self.row | speeds | {"joules_per_image": self.joules / self.images or None}


def measure(network: str, batch: int, dtype: str, arguments: argparse.Namespace) -> list[dict]:
    """Return a row per way: all of them in turns, or one after another."""
    groups = [[name] for name in arguments.ways] if arguments.alone else [arguments.ways]
    rows = []
    for names in groups:
        rows += take_turns(names, network, batch, dtype, arguments)
        gc.collect()
        torch.compiler.reset()  # or compiled networks would keep their memory
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def take_turns(
    names: list[str], network: str, batch: int, dtype: str, arguments: argparse.Namespace
) -> list[dict]:
    """Return a row for each of these ways, whose windows alternate."""
    ways, rows = [], []
    for name in names:
        try:
            ways.append(Way(name, network, batch, dtype))
        except Exception as error:
            setting = {"way": name, "network": network, "batch": batch, "dtype": dtype}
            rows.append(setting | {"error": f"{type(error).__name__}: {error}".splitlines()[0]})
    for _ in range(arguments.windows):
        for way in ways:
            way.window(arguments.seconds)
    rows += [way.result() for way in ways]
    return [row | {"in_turns": len(names) > 1} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS[:3])
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 64, 128, 256])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--alone", action="store_true", help="one way after another, no turns")
    parser.add_argument("--windows", type=int, default=5, help="of each way, in turns")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window")
    parser.add_argument("--out", type=Path, help="also append rows to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    torch.backends.cudnn.benchmark = True  # fast_resnet uses it, so the stock ways do, too
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "fast_resnet": fast_resnet.__version__,
    }
    for network in arguments.networks:
        for batch in arguments.batches:
            for dtype in arguments.dtypes:
                for row in measure(network, batch, dtype, arguments):
                    line = json.dumps(row | machine)
                    print(line, flush=True)
                    if arguments.out:
                        with arguments.out.open("a") as file:
                            file.write(line + "\n")


if __name__ == "__main__":
    main()
