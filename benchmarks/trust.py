"""Check the ratios: a config against itself, the ladder several times, and a bare loop.

    python benchmarks/trust.py                       # every case; about half an hour on two cores
    python benchmarks/trust.py aa --pairs 20         # one
    python benchmarks/trust.py gpu                   # on a machine with a GPU

Prints a JSON line for each measurement, and one for each case with "summary": true. Runs are stored
in a temporary folder.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import combinations
from statistics import median

import numpy as np
import torch
import typer
from torch import nn

from course import launch, launch_all, rung, wait
from course.config import LADDER, Config
from course.runs.ratio import Ratio, centre, ratio
from course.training import models
from course.training.precision import autocast, channels_last
from trainspeed import measured_memory as memory

SCRIPT = "solutions/train.py"
BARE_TURNS, BARE_BLOCK_S = 12, 0.5
GPU = {
    "data": "synthetic",
    "val_steps": 0,
    "epochs": 1,
    "batch_size": 256,
    "steps": 260,
    "warmup_steps": 20,
}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def report(**values: object) -> dict[str, object]:
    """Print a measurement as a JSON line."""
    rounded = {
        key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()
    }
    print(json.dumps(rounded), flush=True)
    return values


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress the output of launches: standard output is for JSON."""
    with redirect_stdout(StringIO()):
        yield


def compare_with_itself(case: str, config: Config, pairs: int) -> None:
    """Compare a config with itself: 19 of 20 intervals should contain 1."""
    with quietly():
        base = launch(SCRIPT, config).wait()
    ratios = []
    for number in range(pairs):
        began = time.perf_counter()
        with quietly():
            run = launch(SCRIPT, config, against=base, rerun=True).wait()
        pair = ratio(run, base)
        ratios.append(pair)
        report(
            case=case,
            pair=number,
            ratio=pair.value,
            low=pair.low,
            high=pair.high,
            turns=pair.turns,
            seconds=time.perf_counter() - began,
        )
    distances = [abs(pair.value - 1) for pair in ratios]
    report(
        case=case,
        summary=True,
        pairs=pairs,
        holding_1=sum(p.low <= 1 <= p.high for p in ratios),
        median_distance=median(distances),
        largest_distance=max(distances),
        median_turns=median(pair.turns for pair in ratios),
    )


@contextmanager
def neighbour() -> Iterator[None]:
    """Run a process that keeps one core busy in bursts of one to three seconds."""
    process = multiprocessing.get_context("fork").Process(target=_burn, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _burn() -> None:
    random_numbers = random.Random(0)
    while True:
        end = time.perf_counter() + random_numbers.uniform(1, 3)
        while time.perf_counter() < end:
            sum(range(1000))
        time.sleep(random_numbers.uniform(1, 3))


@app.command()
def aa(pairs: int = 20, rung_name: str = "device") -> None:
    """Compare a rung with itself on the machine as it is."""
    compare_with_itself("a/a", rung(rung_name, quick=True), pairs)


@app.command()
def busy(pairs: int = 20, rung_name: str = "device") -> None:
    """Compare a rung with itself next to a noisy process."""
    with neighbour():
        compare_with_itself("a/a beside a neighbour", rung(rung_name, quick=True), pairs)


@app.command()
def gpu(pairs: int = 5) -> None:
    """Compare a rung with itself on a GPU, at full size."""
    compare_with_itself("a/a on a GPU", rung("channels_last", **GPU), pairs)


@app.command()
def ladder(times: int = 5) -> None:
    """Run `course ladder --quick` several times."""
    ratios: dict[str, list[float]] = {name: [] for name in LADDER}
    verdicts: dict[tuple[str, str], set[str]] = {pair: set() for pair in combinations(LADDER, 2)}
    for number in range(times):
        began = time.perf_counter()
        with quietly():
            configs = [rung(name, quick=True) for name in LADDER]
            runs = wait(launch_all(SCRIPT, configs, turns=True, rerun=True))
        by_rung = {run.config.rung: ratio(run, runs[0]).value for run in runs}
        for name, value in by_rung.items():
            ratios[name].append(value)
        for first, second in combinations(runs, 2):
            verdicts[first.config.rung, second.config.rung].add(faster(ratio(second, first)))
        report(
            case="ladder",
            time=number,
            turns=runs[0].record.turns,
            order=sorted(by_rung, key=by_rung.get),
            seconds=time.perf_counter() - began,
            **by_rung,
        )
    report(
        case="ladder",
        summary=True,
        changed_places=[
            pair for pair, results in verdicts.items() if results >= {"first", "second"}
        ],
        **{
            f"{name}, largest ÷ smallest": max(values) / min(values)
            for name, values in ratios.items()
        },
    )


def faster(pair: Ratio) -> str:
    """Return which of two is faster, "first" or "second"; "neither" if the interval contains 1."""
    if pair.low <= 1 <= pair.high:
        return "neither"
    return "second" if pair.value > 1 else "first"


@app.command()
def bare(times: int = 3, other: str = "channels_last", against: str = "device") -> None:
    """Compare the ratio of two rungs with that of two bare loops of the same size, in turns."""
    size = {"data": "synthetic", "val_steps": 0}
    pair = [rung(name, quick=True, **size) for name in (against, other)]
    course, loops = [], []
    for number in range(times):
        with quietly():
            first, second = wait(launch_all(SCRIPT, pair, turns=True, rerun=True))
        course.append(ratio(second, first).value)
        loops.append(bare_ratio(*pair))
        report(case="bare", time=number, course=course[-1], bare_loop=loops[-1])
    report(
        case="bare",
        summary=True,
        course=median(course),
        bare_loop=median(loops),
        course_over_bare=median(course) / median(loops),
    )


def bare_ratio(first: Config, second: Config) -> float:
    """Return the ratio of two networks' images per second, in turns in this process."""
    memory.keep_freed()
    steps = [bare_step(config) for config in (first, second)]
    for step in steps:
        step(), step()
    seconds = np.array([[seconds_a_step(step) for step in steps] for _ in range(BARE_TURNS)])
    return centre(seconds[:, 0] / seconds[:, 1])[0]


def seconds_a_step(step) -> float:
    """Return the mean step time over a block."""
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < BARE_BLOCK_S:
        step()
        count += 1
    return passed / count


def bare_step(config: Config):
    """Return a training step without any instrumentation."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = channels_last(models.create(config.model, 16).to(device), on=config.channels_last)
    shape = (config.batch_size, 3, config.image_px, config.image_px)
    images = channels_last(torch.randn(shape, device=device), on=config.channels_last)
    labels = torch.randint(16, (config.batch_size,), device=device)
    optimizer = torch.optim.SGD(
        model.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay
    )

    def step() -> None:
        with autocast(device, config.precision):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type != "cpu":
            torch.accelerator.synchronize()

    return step


@app.callback(invoke_without_command=True)
def run_all(context: typer.Context) -> None:
    """Measure every case that this machine supports."""
    if context.invoked_subcommand is None:
        aa(), busy(), ladder(), bare()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("COURSE_RUNS", folder)
        app()
