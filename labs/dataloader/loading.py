"""What loading a batch costs, stage by stage, and how fast runs load and train.

Times of steps are means over all measured steps, not medians: workers that start together finish
together, so several batches arrive at once and then none for a while. A median would only count
the steps whose batch was ready.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sized
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from course import Config, Run, recorded_runs, rung
from course.data import decode_jpeg, default_set, image_sets, train_view
from trainspeed import timing

# Fields of `Config` that a trial may change, by column.
SETTINGS = {
    "workers": "workers",
    "persistent": "persistent_workers",
    "prefetch": "prefetch_factor",
    "pinned": "pin_memory",
    "non_blocking": "non_blocking",
    "drop_last": "drop_last",
    "uint8": "uint8",
}
STAGES = ("read the file", "decode JPEG", "crop and resize", "flip", "into the batch")


def trials(runs: Iterable[Run]) -> pd.DataFrame:
    """Compare runs, one row each, sorted by how long a step waits for its batch.

    Columns: run; the settings of loading (`SETTINGS`); load_ms and step_ms (means of the measured
    steps); images_per_s (of those steps together); first_batch_ms and next_epoch_ms (wait for the
    first batch of the run, and of its second epoch); images_per_s_median (as in the record);
    host_gib (training process and workers together); status, error, machine. NaN where nothing
    was measured.
    """
    rows = []
    for run in runs:
        record = {
            "images_per_s_median": getattr(run.record, "images_per_s", None),
            "host_gib": getattr(run.record, "host_gib", None),
        }
        row = {column: getattr(run.config, field) for column, field in SETTINGS.items()}
        row |= _step_times(run) | {key: value or math.nan for key, value in record.items()}
        row |= {"status": run.status, "error": getattr(run.record, "error", "")}
        rows.append({"run": run.config.rung, **row, "machine": getattr(run.record, "machine", "")})
    return pd.DataFrame(rows).sort_values("load_ms", kind="stable", ignore_index=True)


def _step_times(run: Run) -> dict[str, float]:
    """Return the columns of `trials` that come from the run's steps."""
    columns = ("load_ms", "step_ms", "images_per_s", "first_batch_ms", "next_epoch_ms")
    steps = run.steps
    measured = steps[run.config.warmup_steps :]
    if measured.empty:
        return dict.fromkeys(columns, math.nan)
    load_s, step_s = measured["load_s"].mean(), measured["step_s"].mean()
    first_ms = [*(1e3 * steps.groupby("epoch")["load_s"].first()), math.nan]
    speed = run.config.batch_size / step_s
    return dict(zip(columns, (1e3 * load_s, 1e3 * step_s, speed, *first_ms[:2])))


def core_speed(run: Run) -> float:
    """Compute the images/s that one core loads, from a run without workers.

    The copy to the device counts as loading. On a GPU it is an upper bound: a step's `load_s` is
    how long the device waits, and loading begins while the device still computes the last batch.

    Raises:
        ValueError: the run has workers, or has measured nothing.
    """
    if run.config.workers:
        raise ValueError(
            f"{run.name} has {run.config.workers} workers, which load while the network computes: "
            f"take a run with workers=0"
        )
    load_ms = _step_times(run)["load_ms"]
    if math.isnan(load_ms):
        raise ValueError(f"{run.name} [{run.status}] has measured no steps: try run.explain()")
    return 1e3 * run.config.batch_size / load_ms


def loads_alone(
    site: str, config: Config, profile: pd.DataFrame, measure: Callable[[Sized, int, int], float]
) -> dict[int, float]:
    """Return the images/s that 1 worker and the config's workers load, measured or by the rule.

    Args:
        profile: from `decode_profile`: a core's speed, on sites that are not recorded.
        measure: takes images, batch size and number of workers; called for the site "local".
    """
    counts = (1, config.workers)
    if site == "local":
        images = image_sets(config).train
        return {count: measure(images, config.batch_size, count) for count in counts}
    speed = 1e3 / profile["ms"].sum()
    if site.startswith("recorded-"):  # only an H200 has these runs; the first has no workers
        speed = core_speed(recorded_runs("nvidia-h200", "loading")[0])
    return {count: count * speed for count in counts}


def training_speeds(machine: str) -> pd.DataFrame:
    """List how fast each rung was recorded on one GPU with synthetic data, slowest first.

    Columns: rung, precision, images_per_s. The batch size is 256. Synthetic batches are always
    ready in time.
    """
    rows = [
        (run.config.rung, run.config.precision, run.record.images_per_s)
        for run in recorded_runs(machine, "throughput", "scaling", "batch sizes")
        if (run.config.data, run.config.batch_size) == ("synthetic", 256)
        and (run.status, run.gpus) == ("ok", 1)
        and run.record.device != "cpu"
    ]
    table = pd.DataFrame(rows, columns=["rung", "precision", "images_per_s"])
    table = table.drop_duplicates(["rung", "precision"])
    return table.sort_values("images_per_s", ignore_index=True)


def decode_profile(images: int = 64, image_px: int = 224) -> pd.DataFrame:
    """Time the stages in which one core turns files of the default set into training images.

    Returns:
        One row per stage of the loader: stage, ms (mean of one image), share (of their sum).
    """
    files = _sample_files(images)
    crop, flip = train_view(rung("baseline", image_px=image_px)).transforms
    stages = (decode_jpeg, crop, flip, lambda image: torch.stack([image]))
    times = timing.time_stages(lambda: (path.read_bytes() for path in files), stages)
    table = pd.DataFrame({"stage": STAGES, "ms": times.mean(axis=0)})
    return table.assign(share=table["ms"] / table["ms"].sum())


def _sample_files(number: int) -> list[Path]:
    """Choose training files of the default set at random, always the same ones."""
    files = sorted(default_set.ensure().glob("train/[!.]*/[!.]*.jpg"))
    return [files[i] for i in np.random.default_rng(0).permutation(len(files))[:number]]
