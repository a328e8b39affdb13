"""Recordings for Day 1: traces by limit, memory snapshot, cudnn.benchmark, a copy.

    python -m research.day1_traces FOLDER [--only PART ...] [--tiny]

Each part writes its files as soon as it is measured; a part that fails is printed, and the next
one follows. About five minutes on an H100; `--tiny` tries everything on a CPU in two.

limits       limit_*.json.gz: two training steps of ResNet-50 each, limited by the input pipeline,
             launch overhead, memory, or a stray synchronisation; limits.csv: milliseconds per step
             without the profiler, and with the cause removed
memory       memory.csv.gz, memory.json: each allocation and free of one step, by category
benchmark    benchmark.csv, benchmark_first_steps.csv, benchmark_sizes.csv
contiguous   contiguous.csv: milliseconds per step with `.contiguous()` after some blocks
caches       caches.csv: TB/s of a copy over its size, read and written, from L2 to memory
waits        waits.csv: milliseconds per step in which the host waits for the device never, once, or
             after each convolution, by batch size
nsys         nsys.sqlite: two steps recorded by NVIDIA's Nsight Systems, whose `nsys` it needs
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torchvision
from torch import nn
from torch.profiler import record_function
from torchvision.transforms import v2

from course.training import models, precision
from course.training.recorder import Recorder
from research.sweep import device
from tools import thin_trace

TINY = "--tiny" in sys.argv
PX = 32 if TINY else 224
TURNS = 2 if TINY else 5
MODES = {  # precision of autocast, memory format
    "fp32": (None, torch.contiguous_format),
    "amp": (torch.bfloat16, torch.contiguous_format),
    "channels_last": (torch.bfloat16, torch.channels_last),
}


def batch_size(images: int) -> int:
    """Return the number of images per step, small for a trial."""
    return min(images, 4) if TINY else images


def synchronize() -> None:
    """Wait for the accelerator, if there is one."""
    if device().type != "cpu":
        torch.accelerator.synchronize()


class Training:
    """ResNet-50 with SGD on one batch that is in the device's memory."""

    def __init__(self, mode: str, images: int, adam: bool = False) -> None:
        precision.set_tf32(False)
        torch.manual_seed(0)
        self.dtype, self.layout = MODES[mode]
        self.model = models.create("resnet50", 1000).to(device(), memory_format=self.layout)
        weights = self.model.parameters()
        self.optimizer = (
            torch.optim.AdamW(weights, 1e-3)
            if adam
            else torch.optim.SGD(weights, 0.01, momentum=0.9, weight_decay=1e-4)
        )
        count = batch_size(images)
        self.images = torch.randn(count, 3, PX, PX, device=device())
        self.images = self.images.to(memory_format=self.layout)
        self.labels = torch.arange(count, device=device())

    def step(self, images: torch.Tensor | None = None, mark: Callable = lambda name: None) -> None:
        """Train on a batch; `mark` is called at the end of each phase."""
        images = self.images if images is None else images
        with torch.autocast(device().type, self.dtype, enabled=self.dtype is not None):
            with record_function("forward"):
                scores = self.model(images)
            mark("forward")
            with record_function("loss"):
                loss = nn.functional.cross_entropy(scores, self.labels[: len(images)])
        mark("loss")
        with record_function("backward"):
            loss.backward()
        mark("backward")
        with record_function("optimizer"):
            self.optimizer.step()
        mark("optimizer")
        self.optimizer.zero_grad(set_to_none=True)

    def load(self) -> torch.Tensor:
        """Return the batch, in a range as a loader would have it."""
        with record_function("load"):
            return self.images

    def seconds(self, steps: int, **arguments: Any) -> float:
        """Return the mean seconds of a step."""
        synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step(**arguments)
        synchronize()
        return (time.perf_counter() - begin) / steps


# --- traces by limit


class Photos(torch.utils.data.Dataset):
    """The same JPEG as often as needed, decoded and cropped like a training image."""

    def __init__(self, count: int) -> None:
        self.count = count
        noise = torch.randint(0, 256, (3, 50, 62), dtype=torch.uint8)
        photo = v2.functional.resize(noise, [60, 80] if TINY else [600, 800])
        self.jpeg = torchvision.io.encode_jpeg(photo, quality=90)
        self.view = v2.Compose(
            [
                v2.RandomResizedCrop(PX, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
            ]
        )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.view(torchvision.io.decode_jpeg(self.jpeg))


def loaded(training: Training) -> Callable[[], torch.Tensor]:
    """Return a function that loads a batch from two worker processes, which are too slow."""
    size = len(training.images)
    loader = torch.utils.data.DataLoader(
        Photos(40 * size), size, num_workers=2, pin_memory=device().type != "cpu"
    )
    batches = iter(loader)

    def load() -> torch.Tensor:
        with record_function("load"):
            images = next(batches).to(device(), non_blocking=True)
            return images.to(memory_format=training.layout)

    return load


@contextlib.contextmanager
def finite_checks(model: nn.Module) -> Iterator[None]:
    """Check each convolution's output for inf and NaN: the host waits for each result."""

    def check(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if not torch.isfinite(output).all():
            raise FloatingPointError(f"{module} returned inf or NaN")

    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    handles = [module.register_forward_hook(check) for module in convolutions]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def trace(folder: Path, name: str, step: Callable[[], None], steps: int = 2) -> Path:
    """Trace steps after a warm-up, and write a thinned trace."""
    full = folder / f"{name}.full.json"

    def save(profiler: torch.profiler.profile) -> None:
        profiler.export_chrome_trace(str(full))

    schedule = torch.profiler.schedule(wait=1 if TINY else 6, warmup=2, active=steps, repeat=1)
    with torch.profiler.profile(
        schedule=schedule, on_trace_ready=save, record_shapes=True
    ) as profiler:
        for _ in range((1 if TINY else 6) + 2 + steps):
            step()
            profiler.step()
    synchronize()
    path = thin_trace.thin(full, folder / f"{name}.json.gz")
    full.unlink()
    print(f"  {path.name}: {path.stat().st_size / 1e3:.0f} KB", flush=True)
    return path


def _median_ms(step: Callable[[], None], steps: int) -> float:
    """Return the median of a few means of a step's milliseconds, after a warm-up."""
    for _ in range(3):
        step()
    means = []
    for _ in range(TURNS):
        synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize()
        means.append((time.perf_counter() - begin) / steps * 1e3)
    return statistics.median(means)


def measure_limits(folder: Path) -> None:
    """Trace a step with each limit; time it without a profiler, and with its cause removed."""
    rows, count = [], 1 if TINY else 20

    def add(name: str, training: Training, ms: float, fixed_ms: float, fix: str) -> None:
        size = len(training.images)
        rows.append({"trace": name, "batch_size": size, "ms": ms, "fixed_ms": fixed_ms, "fix": fix})
        print(f"  {rows[-1]}", flush=True)
        pd.DataFrame(rows).to_csv(folder / "limits.csv", index=False)

    training = Training("channels_last", 256)
    trace(folder, "limit_memory", lambda: training.step(training.load()))
    add("memory", training, _median_ms(training.step, count), float("nan"), "")
    training = Training("channels_last", 128)
    with finite_checks(training.model):
        trace(folder, "limit_sync", lambda: training.step(training.load()))
        ms = _median_ms(training.step, count)
    add("sync", training, ms, _median_ms(training.step, count), "no checks")
    load = loaded(training)
    trace(folder, "limit_input", lambda: training.step(load()))
    ms = _median_ms(lambda: training.step(load()), 1 if TINY else 2)
    add("input", training, ms, _median_ms(training.step, count), "batch on the device")
    training = Training("channels_last", 4)
    trace(folder, "limit_launch", lambda: training.step(training.load()))
    ms = _median_ms(training.step, count)
    replay = captured(training)
    fixed_ms = _median_ms(replay, count) if replay else float("nan")
    add("launch", training, ms, fixed_ms, "one CUDA graph")


def captured(training: Training) -> Callable[[], None] | None:
    """Capture a step as a CUDA graph; return the function that launches it, or None on a CPU."""
    if device().type != "cuda":
        return None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            training.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.step()
    return graph.replay


def measure_waits(folder: Path) -> None:
    """Time a step in which the host waits never, once, or after each convolution."""
    rows = []
    for images in (4, 32, 128, 256):
        training = Training("channels_last", images)
        convolutions = [m for m in training.model.modules() if isinstance(m, nn.Conv2d)]
        for waits in (0, 1, len(convolutions)):
            hooked = convolutions[-waits:] if waits else []  # one wait: late in the forward pass
            handles = [m.register_forward_hook(lambda *_: synchronize()) for m in hooked]
            ms = _median_ms(training.step, 1 if TINY else 20)
            for handle in handles:
                handle.remove()
            rows.append({"batch_size": len(training.images), "waits": waits, "ms": ms})
            print(f"  {rows[-1]}", flush=True)
            pd.DataFrame(rows).to_csv(folder / "waits.csv", index=False)


NSYS_STEPS = """
import torch
from research.day1_traces import Training
training = Training("channels_last", 256)
for _ in range(5):
    training.step()
torch.cuda.synchronize()
with torch.cuda.profiler.profile(), torch.autograd.profiler.emit_nvtx():
    for number in range(2):
        with torch.cuda.nvtx.range(f"ProfilerStep#{number}"):
            training.step(training.load())
    torch.cuda.synchronize()
"""


def measure_nsys(folder: Path) -> None:
    """Record two steps with Nsight Systems, and export them to SQLite.

    Raises:
        FileNotFoundError: `nsys` is not installed.
        CalledProcessError: it failed.
    """
    report = folder / "nsys.nsys-rep"
    command = ["nsys", "profile", "--trace=cuda,nvtx", "--capture-range=cudaProfilerApi"]
    command += ["--force-overwrite=true", f"--output={report}", sys.executable, "-c", NSYS_STEPS]
    subprocess.run(command, check=True)
    export = ["nsys", "export", "--type=sqlite", "--force-overwrite=true"]
    subprocess.run([*export, f"--output={folder / 'nsys.sqlite'}", report], check=True)


# --- the allocator's memory snapshot


def measure_memory(folder: Path) -> None:
    """Record every allocation of the third step, with AdamW, at a batch whose parts are visible."""
    if device().type != "cuda":
        print("  no CUDA: skipped", flush=True)
        return
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
    training = Training("channels_last", 16, adam=True)
    for _ in range(2):
        training.step()
    synchronize()
    torch.cuda.reset_peak_memory_stats()
    ends, addresses = {}, {}

    def count() -> int:
        return len(torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()])

    def mark(name: str) -> None:
        ends[name] = count()
        if name == "backward":
            gradients = [weight.grad for weight in training.model.parameters()]
            addresses["gradients"] = _addresses(gradients)

    begin = count()
    training.step(mark=mark)
    ends["zero_grad"] = count()
    synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    model, states = training.model, training.optimizer.state.values()
    addresses["weights"] = _addresses([*model.parameters(), *model.buffers()])
    addresses["optimizer"] = _addresses([value for state in states for value in state.values()])
    addresses["images"] = _addresses([training.images, training.labels])
    table = allocations(events, begin, ends, addresses)
    table.to_csv(folder / "memory.csv.gz", index=False)
    found = {
        "batch_size": len(training.images),
        "image_px": PX,
        "optimizer": "AdamW",
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "peak_bytes_in_table": int(table["bytes"].cumsum().max()),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "events": len(table),
    }
    (folder / "memory.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"  {found}", flush=True)
    print(table.groupby(["phase", "category"])["bytes"].agg(["size", "sum"]), flush=True)


def _addresses(tensors: list[torch.Tensor | None]) -> set[int]:
    return {
        tensor.untyped_storage().data_ptr()
        for tensor in tensors
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda"
    }


def allocations(
    events: list[dict[str, Any]], begin: int, ends: dict[str, int], addresses: dict[str, set[int]]
) -> pd.DataFrame:
    """Return each allocation (bytes > 0) and free (< 0) of a step, after what it began with.

    Columns: ms since the step's first event, without the pauses between phases in which `mark`
    reads the events; bytes, category, phase, where (file and line of the network or of this
    script, if known).

    Args:
        events: of the allocator, in order: action, addr, size, time_us, frames.
        begin: index of the step's first event.
        ends: index after each phase's last event.
        addresses: of the tensors of each category.
    """
    order = [*ends.items()]

    def phase(index: int) -> str:
        return next((name for name, end in order if index < end), order[-1][0])

    freed: dict[int, int] = {}  # index of an allocation: index of its free
    live: dict[int, int] = {}  # address: index of its allocation
    for index, event in enumerate(events):
        if event["action"] == "alloc":
            live[event["addr"]] = index
        elif event["action"] == "free_completed" and event["addr"] in live:
            freed[live.pop(event["addr"])] = index

    def category(index: int) -> str:
        address, end = events[index]["addr"], freed.get(index, len(events))
        for name in ("weights", "optimizer", "images"):
            if address in addresses[name] and end == len(events):
                return name
        made = phase(index)
        if made == "backward" and address in addresses["gradients"] and end >= ends["backward"]:
            return "gradients"
        if made in ("forward", "loss") and end >= ends["loss"]:
            return "activations"
        return "temporary"

    rows = []
    stays = [i for i, e in enumerate(events[:begin]) if e["action"] == "alloc"]
    kept = [index for index in stays if freed.get(index, len(events)) >= begin]
    at_begin = pd.Series([events[index]["size"] for index in kept], dtype=int)
    names = [category(index) for index in kept]
    for name, size in at_begin.groupby(pd.Series(names, dtype=object)).sum().items():
        rows.append((0.0, size, name, "before", ""))
    allocation_of = {free: index for index, free in freed.items()}
    ms, pauses = 0.0, {end for _, end in order}
    for index in range(begin, len(events)):
        event = events[index]
        before = events[index - 1] if index > begin else event
        is_pause = index in pauses or "snapshot" in (event["action"], before["action"])
        if not is_pause:
            ms += max(0, event["time_us"] - before["time_us"]) / 1e3
        is_alloc = event["action"] == "alloc"
        if not is_alloc and index not in allocation_of:
            continue
        source = index if is_alloc else allocation_of[index]
        size = events[source]["size"] * (1 if is_alloc else -1)
        where = _where(event) if is_alloc else ""
        rows.append((round(ms, 3), size, category(source), phase(index), where))
    return pd.DataFrame(rows, columns=["ms", "bytes", "category", "phase", "where"])


def _where(event: dict[str, Any]) -> str:
    files = ("resnet.py", "day1_traces.py", "adamw.py", "adam.py")
    for frame in event.get("frames") or []:
        name = Path(frame["filename"]).name
        if name in files:
            return f"{name}:{frame['line']}"
    return ""


# --- cudnn.benchmark


def _worker(connection: Any, benchmark: bool) -> None:
    """Train when asked, with one value of the flag: cuDNN's choices stay in a process's cache."""
    torch.backends.cudnn.benchmark = benchmark
    nn.Conv2d(3, 8, 3, device=device())(torch.randn(2, 3, 9, 9, device=device()))
    synchronize()  # CUDA and cuDNN are initialised, which no first step includes
    training = None
    while (request := connection.recv()) is not None:
        name, argument = request
        if name == "setup":
            training = None
            gc.collect()
            training = Training(*argument)
            connection.send(None)
        elif name == "steps":  # seconds of each
            connection.send([training.seconds(1) for _ in range(argument)])
        elif name == "mean":
            connection.send(training.seconds(argument))
        else:  # one step at each image size
            count = len(training.images)
            batches = [
                torch.randn(count, 3, px, px, device=device()).to(memory_format=training.layout)
                for px in argument
            ]
            connection.send([training.seconds(1, images=batch) for batch in batches])


def _ask(connection: Any, name: str, argument: Any) -> Any:
    connection.send((name, argument))
    return connection.recv()


def measure_benchmark(folder: Path) -> None:
    """Time steps with cudnn.benchmark off and on, in turns of two processes."""
    rows, first_rows, size_rows = [], [], []
    sizes = [32, 40] if TINY else [*range(128, 256, 8)]
    spawn, workers = multiprocessing.get_context("spawn"), {}
    for benchmark in (False, True):
        workers[benchmark], theirs = spawn.Pipe()
        spawn.Process(target=_worker, args=(theirs, benchmark), daemon=True).start()
        theirs.close()
    for images, mode in [(n, mode) for n in (256, 64) for mode in ("channels_last", "amp", "fp32")]:
        setting = {"mode": mode, "batch_size": batch_size(images)}
        for benchmark, connection in workers.items():
            _ask(connection, "setup", (mode, images))
            seconds = _ask(connection, "steps", 2 if TINY else 5)
            first = {f"step_{number}_s": value for number, value in enumerate(seconds, 1)}
            first_rows.append(setting | {"benchmark": benchmark} | first)
        steps = 1 if TINY else 3 if mode == "fp32" else 15
        for turn in range(TURNS):
            for benchmark, connection in workers.items():
                images_per_s = setting["batch_size"] / _ask(connection, "mean", steps)
                row = {"benchmark": benchmark, "turn": turn, "images_per_s": images_per_s}
                rows.append(setting | row)
        if mode == "channels_last" and images == 64:
            for benchmark, connection in workers.items():
                for visit in (1, 2):
                    seconds = _ask(connection, "sizes", sizes)
                    size_rows += [
                        setting | {"benchmark": benchmark, "visit": visit, "px": px, "s": s}
                        for px, s in zip(sizes, seconds)
                    ]
        table = pd.DataFrame(rows)
        table.to_csv(folder / "benchmark.csv", index=False)
        pd.DataFrame(first_rows).to_csv(folder / "benchmark_first_steps.csv", index=False)
        pd.DataFrame(size_rows).to_csv(folder / "benchmark_sizes.csv", index=False)
        last = table[table["mode"].eq(mode) & table["batch_size"].eq(setting["batch_size"])]
        print(f"  {setting}", last.groupby("benchmark")["images_per_s"].median().to_dict())
        print(f"    first steps {first_rows[-2:]}", flush=True)
    for connection in workers.values():
        connection.send(None)


# --- a copy to NCHW inside the network


def add_contiguous(block: nn.Module) -> None:
    """Return the block's output to NCHW."""
    forward = block.forward
    block.forward = lambda x: forward(x).contiguous()


def measure_contiguous(folder: Path) -> None:
    """Time a step with `.contiguous()` after no block, one block, or every block, in turns."""
    trainings = {}
    for place in ("none", "layer1.1", "layer3.2", "every block"):
        trainings[place] = Training("channels_last", 256)
        for name, block in trainings[place].model.named_modules():
            is_block = isinstance(block, torchvision.models.resnet.Bottleneck)
            if name == place or place == "every block" and is_block:
                add_contiguous(block)
        trainings[place].seconds(3)
    rows = []
    for turn in range(TURNS):
        for place, training in trainings.items():
            ms = training.seconds(1 if TINY else 10) * 1e3
            size = len(training.images)
            rows.append({"place": place, "batch_size": size, "turn": turn, "ms": ms})
    table = pd.DataFrame(rows)
    table.to_csv(folder / "contiguous.csv", index=False)
    print(table.groupby("place", sort=False)["ms"].median(), flush=True)


def _copy(source: torch.Tensor, target: torch.Tensor, count: int) -> None:
    for _ in range(count):
        target.copy_(source)


def measure_caches(folder: Path) -> None:
    """Time copies of tensors of each size; small ones stay in the L2 cache."""
    rows, count = [], 50
    for exponent in range(20, 22 if TINY else 32):
        numbers = torch.ones(2**exponent, dtype=torch.uint8, device=device())
        copy = torch.empty_like(numbers)

        copies = partial(_copy, numbers, copy, count)
        copies()
        synchronize()
        run = copies
        if device().type == "cuda":  # launching takes longer than a small copy
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                copies()
            run = graph.replay
        ms = _median_ms(run, 5) / count
        tb_per_s = 2 * numbers.numel() / ms / 1e9
        rows.append({"bytes": 2 * numbers.numel(), "tb_per_s": tb_per_s})
        print(f"  {rows[-1]}", flush=True)
        pd.DataFrame(rows).to_csv(folder / "caches.csv", index=False)


PARTS = {
    "limits": measure_limits,
    "memory": measure_memory,
    "contiguous": measure_contiguous,
    "caches": measure_caches,
    "benchmark": measure_benchmark,
    "waits": measure_waits,
    "nsys": measure_nsys,
}


def main() -> None:
    """Measure each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    origin = {
        "machine": Recorder(None).describe(device())["machine"],
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "command": "python -m research.day1_traces",
    }
    (options.folder / "origin.json").write_text(json.dumps(origin, indent=1) + "\n")
    begin = time.monotonic()
    for part in options.only:
        print(f"{time.monotonic() - begin:5.0f} s  {part}", flush=True)
        try:
            PARTS[part](options.folder)
        except Exception:  # one part's failure must not end the others
            traceback.print_exc()
        gc.collect()
        if device().type == "cuda":
            torch.cuda.empty_cache()
    print(f"{time.monotonic() - begin:5.0f} s  done", flush=True)


if __name__ == "__main__":
    main()
