"""When two training runs are bitwise identical: orders of a sum, workers, repeated runs."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, TensorDataset

from course import Run
from course.data import RandomCrop, Seeded

WORKERS = (0, 1, 2)


def compare_sums() -> pd.Series:
    """Add up the same million numbers in fp32 in four orders, and in fp64 for comparison."""
    numbers = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    sums = {
        "from left to right": numbers.cumsum(dtype=np.float32)[-1],
        "from right to left": numbers[::-1].cumsum(dtype=np.float32)[-1],
        "two halves": sum(half.cumsum(dtype=np.float32)[-1] for half in np.split(numbers, 2)),
        "in pairs": numbers.sum(dtype=np.float32),
        "in fp64": numbers.sum(dtype=np.float64),
    }
    return pd.Series({name: float(value) for name, value in sums.items()}, name="sum")


class _CroppedImages(TensorDataset):
    """Images that are cropped at random, like those of a file."""

    crop = RandomCrop(32)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.crop(self.tensors[0][index])


def compare_crops() -> pd.DataFrame:
    """Load an epoch of random crops with different numbers of workers; return checksums.

    Columns: `by worker`, as a DataLoader has it, each worker with its own random numbers; `by
    image`, as `course.data.Seeded` has it, from seed, epoch and image.
    """
    images = torch.rand(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    cropped = _CroppedImages(images)
    datasets = {"by worker": cropped, "by image": Seeded(cropped, 0)}
    rows = {
        count: {name: _checksum(dataset, count) for name, dataset in datasets.items()}
        for count in WORKERS
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("workers")


def _checksum(images: TensorDataset | Seeded, workers: int) -> str:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loader = DataLoader(images, 2, num_workers=workers, generator=generator)
        pixels = torch.cat([*loader])
    return f"{zlib.crc32(pixels.numpy().tobytes()):08x}"


def compare_repeats(runs: Iterable[Run]) -> pd.DataFrame:
    """Compare each training that ran twice on one machine.

    Columns: precision, repeatable (deterministic algorithms), images_per_s (mean of the two),
    spread (their difference over the mean), same_steps (with the same loss, from the first on),
    max_difference (of a step's loss), ratio (of images_per_s to the same training without
    deterministic algorithms).
    """
    by_label = {run.config.rung: run for run in runs}
    rows = []
    for label, again in by_label.items():
        if label.endswith("-again"):
            first = by_label[label.replace("-again", "-first")]
            speeds = [first.record.images_per_s, again.record.images_per_s]
            differences = (first.steps["loss"] - again.steps["loss"]).abs()
            rows.append(
                {
                    "precision": first.config.precision,
                    "repeatable": first.config.deterministic,
                    "images_per_s": np.mean(speeds),
                    "spread": np.ptp(speeds) / np.mean(speeds),
                    "same_steps": int((differences == 0).cummin().sum()),
                    "max_difference": float(differences.max()),
                }
            )
    table = pd.DataFrame(rows)
    plain = table[~table["repeatable"]].set_index("precision")["images_per_s"]
    return table.assign(ratio=table["images_per_s"] / table["precision"].map(plain))
