"""Feeding the network: what loading a batch costs, what it is made of, and how many cores it needs.

Times here are means over all measured steps, not medians: workers that start together finish
together, so that several batches come at once and then none does for a while. A median sees
only the batches that were there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import default_collate
from torchvision.transforms import v2

from course.config import rung
from course.data import default_set
from course.data.images import decode_jpeg, normalised, one_thread, train_view
from course.runs.recordings import recorded_runs
from course.runs.run import Run

# What a trial may change, by the column that shows it.
SETTINGS = {
    "workers": "workers",
    "persistent": "persistent_workers",
    "prefetch": "prefetch_factor",
    "pinned": "pin_memory",
    "non_blocking": "non_blocking",
    "drop_last": "drop_last",
    "uint8": "uint8",
}
TIMES = (
    "load_ms",
    "step_ms",
    "images_per_s",
    "images_per_s_median",
    "first_batch_ms",
    "next_epoch_ms",
)
STAGES = (
    "read the file",
    "decode JPEG",
    "crop and resize",
    "flip",
    "normalise",
    "into the batch",
)
MB = 1e6
ROUNDS = 4


def trials(runs: Iterable[Run]) -> pd.DataFrame:
    """The runs, one row each, the one that waited least for its batches first.

    Columns: run, the settings of loading (workers, persistent, prefetch, pinned, non_blocking,
    drop_last, uint8), load_ms and step_ms (means of the measured steps), images_per_s (of those
    steps together), images_per_s_median (what the record says), first_batch_ms and
    next_epoch_ms (waited for the first batch of the run, and of its second epoch), host_gib
    (training process and workers together), status, error, machine. What was not measured is NaN.
    """
    rows = []
    for run in runs:
        config, record = run.config, run.record
        settings = {column: getattr(config, name) for column, name in SETTINGS.items()}
        known = {
            "status": run.status,
            "error": record.error if record else "",
            "machine": record.machine if record else "",
            "images_per_s_median": record.images_per_s if record else None,
            "host_gib": record.host_gib if record else None,
        }
        rows.append({"run": config.rung, **settings, **_waits(run), **known})
    columns = ["run", *SETTINGS, *TIMES, "host_gib", "status", "error", "machine"]
    numbers = dict.fromkeys([*TIMES, "host_gib"], float)
    table = pd.DataFrame(rows, columns=columns).astype(numbers)
    return table.sort_values("load_ms", kind="stable", ignore_index=True)


def _waits(run: Run) -> dict[str, float]:
    steps = run.steps
    measured = steps[run.config.warmup_steps :]
    if measured.empty:
        return {}
    firsts = (1e3 * steps.groupby("epoch")["load_s"].first()).tolist()
    mean = float(measured["step_s"].mean())
    return {
        "load_ms": 1e3 * float(measured["load_s"].mean()),
        "step_ms": 1e3 * mean,
        "images_per_s": run.config.batch_size / mean,
        "first_batch_ms": firsts[0],
        "next_epoch_ms": firsts[1] if len(firsts) > 1 else math.nan,
    }


def appetite(run: Run) -> float:
    """Images/s that the network would train if every batch were there in time.

    Take a run on synthetic data, or one on a CPU. A GPU that waits for its batches begins each
    step with an empty queue, so that what is left of its step without waiting is too long.

    Raises:
        ValueError: the run has measured nothing.
    """
    found = _measured(run)
    return 1e3 * run.config.batch_size / (found["step_ms"] - found["load_ms"])


def loaded_by_one(run: Run) -> float:
    """Images/s that one core loads, from a run whose training process loads them itself.

    The copy to the device is counted as loading.

    Raises:
        ValueError: the run has workers, or has measured nothing.
    """
    if run.config.workers:
        raise ValueError(
            f"{run.name} has {run.config.workers} workers, which load while the network computes: "
            f"take a run with workers=0"
        )
    return 1e3 * run.config.batch_size / _measured(run)["load_ms"]


def _measured(run: Run) -> dict[str, float]:
    found = _waits(run)
    if not found:
        raise ValueError(
            f"{run.name} [{run.status}] has measured no steps: wait for it, or see why"
        )
    return found


def cores_needed(model_images_per_s: float, decode_images_per_s: float) -> int:
    """The rule: what the model eats, divided by what one core decodes, rounded up.

    Raises:
        ValueError: a speed that is not above zero.
    """
    if not (model_images_per_s > 0 and decode_images_per_s > 0):
        raise ValueError("both speeds must be above zero, in images per second")
    return math.ceil(round(model_images_per_s / decode_images_per_s, 9))


def appetites(machine: str, batch_size: int = 256) -> pd.DataFrame:
    """What each rung eats that was recorded on a machine with synthetic data, slowest first.

    Columns: rung, precision, images_per_s. Batches that cost nothing are always there in time.
    """
    rows = [
        (run.config.rung, run.config.precision, run.record.images_per_s)
        for run in recorded_runs(machine, "throughput", "scaling", "batch sizes")
        if run.config.data == "synthetic"
        and run.config.batch_size == batch_size
        and run.status == "ok"
        and run.record.device != "cpu"
        and run.launched["gpus"] == 1
    ]
    table = pd.DataFrame(rows, columns=["rung", "precision", "images_per_s"])
    table = table.drop_duplicates(["rung", "precision"])
    return table.sort_values("images_per_s", ignore_index=True)


def decode_profile(
    images: int = 64, image_px: int = 224, *, uint8: bool = True, seed: int = 0
) -> pd.DataFrame:
    """What one core does to make a training image of a file of the default set, stage by stage.

    The stages are those of the loader, timed one by one. Each image is made ROUNDS times, and the
    shortest time of a stage counts, as the one that other programs disturbed least; so the files
    come from the system's cache and not from a disk.

    Returns:
        One row a stage: stage, ms (mean of one image), share (of their sum).
    """
    files = sorted(default_set.ensure().glob("train/[!.]*/[!.]*.jpg"))
    chosen = np.random.default_rng(seed).permutation(len(files))[:images]
    view = train_view(rung("baseline", image_px=image_px, uint8=uint8)).transforms
    shortest = np.full((len(chosen), len(STAGES)), np.inf)
    with one_thread():
        for _ in range(ROUNDS):
            torch.manual_seed(seed)  # the same crops in every round
            made = [_make(files[i], view) for i in chosen]
            begin = time.perf_counter()
            default_collate([image for image, _ in made])
            copied = (time.perf_counter() - begin) / len(made)
            seconds = np.array([[*each, copied] for _, each in made])
            shortest = np.minimum(shortest, seconds)
    table = pd.DataFrame({"stage": STAGES, "ms": 1e3 * shortest.mean(axis=0)})
    return table.assign(share=table["ms"] / table["ms"].sum())


def _make(path: Any, view: list[v2.Transform]) -> tuple[torch.Tensor, np.ndarray]:
    """One image, and the seconds of each stage but the last."""
    crop, flip, *normalise = view
    marks = [time.perf_counter()]
    value: Any = path.read_bytes()
    marks.append(time.perf_counter())
    for stages in ([decode_jpeg], [crop], [flip], normalise):
        for stage in stages:
            value = stage(value)
        marks.append(time.perf_counter())
    return value, np.diff(marks)


def bytes_or_floats(
    batch_size: int = 64, image_px: int = 224, device: torch.device | None = None
) -> pd.DataFrame:
    """A batch as float32, normalised by the worker, and as bytes, normalised on the device.

    Returns:
        Two rows, "float32" and "uint8", with: megabytes of the batch; worker_ms, what a core
        needs for the stages after the flip; copy_ms, to the device (on a CPU, once from memory to
        memory); normalise_ms, on the device.
    """
    device = device or torch.device("cpu")
    rows = {}
    for name, uint8 in (("float32", False), ("uint8", True)):
        profile = decode_profile(batch_size, image_px, uint8=uint8).set_index("stage")["ms"]
        kind = torch.uint8 if uint8 else torch.float32
        batch = torch.zeros((batch_size, 3, image_px, image_px), dtype=kind)
        batch = batch.pin_memory() if device.type == "cuda" else batch
        there = batch.to(device, copy=True)
        rows[name] = {
            "megabytes": batch.nbytes / MB,
            "worker_ms": batch_size * profile[["normalise", "into the batch"]].sum(),
            "copy_ms": _ms(lambda batch=batch: batch.to(device, copy=True), device),
            "normalise_ms": _ms(lambda there=there: normalised(there), device) if uint8 else 0.0,
        }
    return pd.DataFrame(rows).T


def _ms(work: Any, device: torch.device, repeats: int = 5) -> float:
    """The median time of some work, waited for."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        times.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(times[1:]))
