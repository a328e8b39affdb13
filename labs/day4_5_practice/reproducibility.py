"""When are two trainings the same to the bit? What changes the order of a sum, and who draws."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from course.config import Config
from course.data.images import RandomCrop
from course.data.seeded import Seeded
from course.runs.run import Run

NUMBERS = 1_000_000  # that are added up
WORKERS = (0, 1, 2)
IMAGES, BATCH = 8, 2
SIDE, CROP = 64, 32  # pixels


def sums(seed: int = 0) -> pd.Series:
    """The sum of a million numbers in fp32, in four orders, and in fp64 for comparison.

    All are of the same numbers, so that only rounding differs.
    """
    numbers = np.random.default_rng(seed).standard_normal(NUMBERS).astype(np.float32)
    ways = {
        "from left to right": numbers.cumsum(dtype=np.float32)[-1],
        "from right to left": numbers[::-1].cumsum(dtype=np.float32)[-1],
        "two halves": sum(half.cumsum(dtype=np.float32)[-1] for half in np.split(numbers, 2)),
        "in pairs": numbers.sum(dtype=np.float32),
    }
    ways = {name: float(found) for name, found in ways.items()}
    return pd.Series(ways | {"in fp64": float(numbers.sum(dtype=np.float64))}, name="sum")


def threads(counts: Sequence[int] = (1, 2), steps: int = 10, seed: int = 0) -> pd.DataFrame:
    """One small training with each number of threads, twice: its losses, one column a training.

    The second with the same number is called "1 again", for instance. With channels last, each
    thread adds up a part of BatchNorm's sums, whatever the CPU.
    """
    before, found = torch.get_num_threads(), {}
    try:
        for count in counts:
            for name in (f"{count}", f"{count} again"):
                torch.set_num_threads(count)
                found[name] = _losses(steps, seed)
    finally:
        torch.set_num_threads(before)
    return pd.DataFrame(found).rename_axis("step")


def _losses(steps: int, seed: int) -> list[float]:
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(4, 3, 96, 96, generator=random).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (4,), generator=random)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential()
        for inputs in (3, 32):
            net.extend([nn.Conv2d(inputs, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()])
        net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)])
    net.to(memory_format=torch.channels_last)
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1, 0.9), []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class _Cropped(TensorDataset):
    """Images that are cropped at random, as a file's are."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self._crop = RandomCrop(CROP)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._crop(self.tensors[0][index])


def crops(seed: int = 0) -> pd.DataFrame:
    """Which crops an epoch of eight images has, by the number of workers that load them.

    One row a number of workers. `by worker`: as a DataLoader has it, each process drawing from a
    row of its own. `by image`: as `course.data.seeded.Seeded`, from seed, epoch and image. Equal
    numbers are equal pixels.
    """
    pixels = torch.rand(IMAGES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    plain = _Cropped(pixels)
    sets = {"by worker": plain, "by image": Seeded(plain, seed)}
    rows = {
        count: {name: _loaded(each, count, seed) for name, each in sets.items()}
        for count in WORKERS
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("workers")


def _loaded(images: TensorDataset | Seeded, workers: int, seed: int) -> str:
    order = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loader = DataLoader(images, BATCH, num_workers=workers, generator=order)
        found = torch.cat([*loader])
    return f"{zlib.crc32(found.numpy().tobytes()):08x}"


def machines(runs: Iterable[Run], others: Iterable[Run]) -> pd.DataFrame:
    """Trainings of one config on two machines, whose losses are recorded to a millionth.

    Columns: rung, precision, layout, steps (that both did), same_steps (so many at the beginning
    had the same loss), apart (the largest difference of a step's loss).
    """
    known = {_asked(each.config): each for each in others if len(each.steps)}
    rows = []
    for run in runs:
        if len(run.steps) and (other := known.get(_asked(run.config))):
            rows.append(_beside(run, other))
    columns = ["rung", "precision", "layout", "steps", "same_steps", "apart"]
    return pd.DataFrame(rows, columns=columns)


def repeats(runs: Iterable[Run]) -> pd.DataFrame:
    """Each training that was made twice on one machine, with and without fixed algorithms.

    Columns: precision, repeatable (were algorithms fixed?), images_per_s (the mean of the two),
    spread (their difference over their mean), same_steps and apart as `machines` has them, ratio
    (of images per second over those of the same training without fixed algorithms).
    """
    every, rows = [*runs], []
    for first in every:
        again = [
            each
            for each in every
            if each.config.rung == first.config.rung.removesuffix("first") + "again"
        ]
        if not first.config.rung.endswith("-first") or not again:
            continue
        speeds = [each.record.images_per_s for each in (first, again[0])]
        mean = sum(speeds) / 2
        found = _beside(first, again[0])
        rows.append(
            {
                "precision": first.config.precision,
                "repeatable": first.config.deterministic,
                "images_per_s": mean,
                "spread": abs(speeds[0] - speeds[1]) / mean,
                "same_steps": found["same_steps"],
                "apart": found["apart"],
            }
        )
    table = pd.DataFrame(rows)
    plain = table[~table["repeatable"]].set_index("precision")["images_per_s"]
    table["ratio"] = table["images_per_s"] / table["precision"].map(plain)
    return table


def _asked(config: Config) -> tuple:
    own = {name: value for name, value in vars(config).items() if name != "rung"}
    return tuple(own.items())


def _beside(run: Run, other: Run) -> dict[str, object]:
    losses = [each.steps.set_index("step")["loss"] for each in (run, other)]
    apart = (losses[0] - losses[1]).dropna().abs()
    differs = apart.gt(0).to_numpy()
    return {
        "rung": run.config.rung,
        "precision": run.config.precision,
        "layout": "NHWC" if run.config.channels_last else "NCHW",
        "steps": len(apart),
        "same_steps": int(differs.argmax()) if differs.any() else len(apart),
        "apart": float(apart.max()),
    }
