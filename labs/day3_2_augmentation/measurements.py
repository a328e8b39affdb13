"""What augmenting costs, and what it brings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import v2

from course.config import rung
from course.data import default_set
from course.data.augment import OPERATIONS, STRENGTH
from course.data.images import epoch_px, one_thread, open_image, train_view
from course.runs.run import Run

ROUNDS = 5


def operation_costs(images: torch.Tensor) -> pd.DataFrame:
    """What each operation of RandAugment costs one core, an image at a time.

    Args:
        images: bytes of shape (N, 3, H, W).

    Returns:
        One row an operation: operation, ms (mean over the images, of each the shortest of ROUNDS),
        in the order of `OPERATIONS`.
    """
    shortest = np.full((len(OPERATIONS), len(images)), np.inf)
    with one_thread():
        for _ in range(ROUNDS):
            for row, change in enumerate(OPERATIONS.values()):
                for place, image in enumerate(images):
                    begin = time.perf_counter()
                    change(image, STRENGTH)
                    shortest[row, place] = min(shortest[row, place], time.perf_counter() - begin)
    return pd.DataFrame({"operation": [*OPERATIONS], "ms": 1e3 * shortest.mean(axis=1)})


def work_per_image(images: int = 64, image_px: int = 224, seed: int = 0) -> pd.Series:
    """Milliseconds of one core for a training image: all that a loader does, and RandAugment.

    Both take turns, image by image; the mean over the images counts.

    Returns:
        "load" (read, decode, crop, flip) and "RandAugment" (its two changes).
    """
    files = sorted(default_set.ensure().glob("train/[!.]*/[!.]*.jpg"))
    chosen = np.random.default_rng(seed).permutation(len(files))[:images]
    view, change = train_view(rung("baseline", image_px=image_px)), v2.RandAugment()
    seconds: dict[str, list[float]] = {"load": [], "RandAugment": []}
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for number in chosen:
            marks = [time.perf_counter()]
            image = view(open_image(str(files[number])))
            marks.append(time.perf_counter())
            change(image)
            marks.append(time.perf_counter())
            for what, took in zip(seconds, np.diff(marks)):
                seconds[what].append(took)
    return pd.Series({what: 1e3 * float(np.mean(took)) for what, took in seconds.items()})


def in_turns(
    ways: Mapping[str, Callable[[], Any]], device: torch.device | None = None, rounds: int = 7
) -> pd.DataFrame:
    """Some ways to do the same, timed one after another in each round.

    Args:
        device: on which they work, and which is waited for; None: the CPU.

    Returns:
        One row a way: way, ms (the median round; one more before all is not counted).
    """

    def wait() -> None:
        if device is not None and device.type != "cpu":
            torch.accelerator.synchronize(device)

    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, work in ways.items():
            wait()
            begin = time.perf_counter()
            work()
            wait()
            times[name].append(time.perf_counter() - begin)
    rows = [(name, 1e3 * float(np.median(took[1:]))) for name, took in times.items()]
    return pd.DataFrame(rows, columns=["way", "ms"])


def operator_calls(work: Callable[[], Any]) -> int:
    """How many operators of PyTorch a piece of work calls."""

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with Count() as counted:
        work()
    return counted.calls


def brought(runs: Iterable[Run]) -> pd.DataFrame:
    """What each training learned, epoch after epoch.

    The name of a way is what comes before "-seed-" in a run's label.

    Returns:
        One row an epoch of a run: way, seed, epoch (from 1), loss (of training, its mean),
        val_loss, val_top1, machine.
    """
    rows = []
    for run in runs:
        losses = run.steps.groupby("epoch")["loss"].mean()
        for number, told in enumerate(run.record.epochs):
            row = {"way": run.config.rung.partition("-seed-")[0], "seed": run.config.seed}
            row |= {"epoch": number + 1, "loss": float(losses[number])}
            row |= {name: told[name] for name in ("val_loss", "val_top1")}
            rows.append(row | {"machine": run.record.machine})
    return pd.DataFrame(rows)


def epochs(run: Run) -> pd.DataFrame:
    """How long each epoch's steps took: epoch (from 1), image_px, seconds, images_per_s."""
    seconds = run.steps.groupby("epoch")["step_s"].agg(["sum", "count"])
    sizes = [epoch_px(run.config, int(number)) for number in seconds.index]
    return pd.DataFrame(
        {
            "epoch": seconds.index + 1,
            "image_px": sizes,
            "seconds": seconds["sum"].to_numpy(),
            "images_per_s": (run.config.batch_size * seconds["count"] / seconds["sum"]).to_numpy(),
        }
    )
