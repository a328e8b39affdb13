"""Where a step's joules go, and what would save some: each predicted, then measured.

    python benchmarks/fast_step/power.py > power.jsonl

An image costs the power of an idle GPU for as long as its step takes, each byte that memory moves,
and each FLOP. The first part measures these three prices, with a long copy and with a large product
in fp16 and in fp8. The second measures whole steps, and what of them the prices explain. The third
predicts what the network's 1x1 convolutions cost, in fp16 and with inputs in fp8, and measures it.
For a GPU that counts its joules, and knows fp8 (Hopper and later), with nothing else running on it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from measure import HALF, make_step, set_tf32
from torch import nn
from torchvision.models import resnet50

from course.training.energy import EnergyMeter, board, counter

FOR_S = 6.0  # each: the counter moves some ten times a second
LARGE = 8192  # rows, columns and depth of the large product
BATCH = 256
STEP_MB = {"eager": 486.0, "fast": 217.0}  # bytes of an image, as docs/performance.md counts them
STEP_GFLOP = 24.3  # of an image, as docs/performance.md counts them


class Prices(NamedTuple):
    """What is paid for, whatever it is used for."""

    idle_w: float
    byte_j: float  # read from memory, or written
    flop_j: float

    def joules(self, seconds: float, bytes_moved: float, flop: float) -> float:
        """Those of some work."""
        return self.idle_w * seconds + self.byte_j * bytes_moved + self.flop_j * flop


def tell(record: str, **fields: Any) -> None:
    """Print a row."""
    print(json.dumps({"record": record} | fields), flush=True)


def cost(run: Callable[[], Any], device: torch.device) -> tuple[float, float, float]:
    """Seconds and joules of one call, over `FOR_S` of nothing else, and the median clock in MHz."""
    import pynvml

    handle = board(device)
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        run()
    torch.cuda.synchronize()
    count = max(1, round(0.1 / ((time.perf_counter() - began) / 10)))
    for _ in range(5 * count):  # the clock comes down to what power allows
        run()
    torch.cuda.synchronize()
    meter, clocks, calls = EnergyMeter(counter(device)), [], 0
    meter.start()
    began = time.perf_counter()
    while time.perf_counter() - began < FOR_S:
        for _ in range(count):
            run()
        calls += count
        clocks.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / calls
    meter.stop()
    return seconds, meter.watts * seconds, sorted(clocks)[len(clocks) // 2]


def product(m: int, n: int, k: int, kind: str, device: torch.device) -> Callable[[], torch.Tensor]:
    """a [m, k] times b [k, n]; in fp8 both are scaled, and the result is fp16."""
    a, b = (torch.randn(shape, device=device) for shape in ((m, k), (n, k)))
    if kind == "fp16":
        a, b = a.half(), b.half()
        return lambda: a @ b.t()
    one = torch.ones((), device=device)
    a, b = (each.to(torch.float8_e4m3fn) for each in (a, b))
    return lambda: torch._scaled_mm(
        a, b.t(), one, one, out_dtype=torch.float16, use_fast_accum=True
    )


def prices(device: torch.device) -> dict[str, Prices]:
    """Of fp16 and of fp8; a row for each measurement."""
    torch.ones(1, device=device)
    meter = EnergyMeter(counter(device))
    time.sleep(1)
    meter.start()
    time.sleep(FOR_S)
    meter.stop()
    idle_w = meter.watts
    tell("idle", watts=idle_w)
    found = {}
    long, short = (
        torch.empty(size, dtype=torch.uint8, device=device) for size in (1 << 30, 1 << 24)
    )
    for name, tensor in (("memory", long), ("cache", short)):
        other = torch.empty_like(tensor)
        seconds, joules, mhz = cost(partial(other.copy_, tensor), device)
        moved = 2 * tensor.numel()
        byte_j = (joules - idle_w * seconds) / moved
        tell(name, bytes_per_s=moved / seconds, watts=joules / seconds, byte_j=byte_j, mhz=mhz)
        found[name] = byte_j
    kinds = {}
    for kind in ("fp16", "fp8"):
        seconds, joules, mhz = cost(product(LARGE, LARGE, LARGE, kind, device), device)
        flop = 2.0 * LARGE**3
        flop_j = (joules - idle_w * seconds) / flop
        tell(kind, flop_per_s=flop / seconds, watts=joules / seconds, flop_j=flop_j, mhz=mhz)
        kinds[kind] = Prices(idle_w, found["memory"], flop_j)
    return kinds


def convolutions() -> Counter[tuple[int, int, int]]:
    """ResNet-50's 1x1 convolutions with stride 1: pixels of an image, channels in and out."""
    found: Counter[tuple[int, int, int]] = Counter()

    def note(conv: nn.Conv2d, given: Any, y: torch.Tensor) -> None:
        found[y.shape[2] * y.shape[3], conv.in_channels, conv.out_channels] += 1

    with torch.device("meta"):
        network = resnet50()
        for each in network.modules():
            if isinstance(each, nn.Conv2d) and (each.kernel_size, each.stride) == ((1, 1), (1, 1)):
                each.register_forward_hook(note)
        network(torch.empty(1, 3, 224, 224))
    return found


def products(known: dict[str, Prices], device: torch.device) -> None:
    """The network's own: what the prices say an image's cost, and what they do."""
    for kind, each in known.items():
        size, predicted, measured, took = {"fp16": 2, "fp8": 1}[kind], 0.0, 0.0, 0.0
        for (pixels, depth, columns), times in convolutions().items():
            m = BATCH * pixels
            seconds, joules, mhz = cost(product(m, columns, depth, kind, device), device)
            moved = size * (m * depth + depth * columns) + 2 * m * columns
            thought = each.joules(seconds, moved, 2.0 * m * depth * columns)
            shape = {"pixels": pixels, "depth": depth, "columns": columns, "times": times}
            tell(
                "product",
                kind=kind,
                **shape,
                predicted_j=thought / BATCH,
                joules=joules / BATCH,
                seconds=seconds / BATCH,
                watts=joules / seconds,
                mhz=mhz,
            )
            predicted += times * thought / BATCH
            measured += times * joules / BATCH
            took += times * seconds / BATCH
        tell("products", kind=kind, predicted_j=predicted, joules=measured, seconds=took)


def steps(known: Prices, device: torch.device) -> None:
    """Whole steps: the prices' parts of them, and what is left."""
    for dtype in HALF:
        for way, megabytes in STEP_MB.items():
            step = make_step(way, argparse.Namespace(batch=BATCH, dtype=dtype), device)
            for _ in range(12):
                step()
            seconds, joules, mhz = cost(step, device)
            a_image = seconds / BATCH
            tell(
                "step",
                way=way,
                dtype=dtype,
                images_per_s=1 / a_image,
                joules=joules / BATCH,
                watts=joules / seconds,
                mhz=mhz,
                idle_j=known.idle_w * a_image,
                memory_j=known.byte_j * megabytes * 1e6,
                products_j=known.flop_j * STEP_GFLOP * 1e9,
            )


def main() -> None:
    device = torch.device("cuda")
    if counter(device) is None:
        raise SystemExit("this needs an NVIDIA GPU that counts its joules, and there is none")
    set_tf32(True)
    tell("machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__)
    known = prices(device)
    steps(known["fp16"], device)
    products(known, device)


if __name__ == "__main__":
    main()
