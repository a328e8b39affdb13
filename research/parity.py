"""Is it the same training? Several seeds of each way to train, and a test of their distributions.

    python -m research.parity OUT.jsonl               # large on a GPU, small on a CPU
    python -m research.parity OUT.jsonl --only algebra    # one of several processes at once

Each way trains the same network from the same seeds on the same images: "fp32", "autocast",
"compile" and "algebra", and "again", which is autocast with other seeds, and "broken", which is the
algebra in plain PyTorch with one term of its backward forgotten. Every way is compared with
autocast: the mean loss over all steps, the last ones' loss, validation accuracy, and the steps to
an accuracy. p is that of an exact permutation test: how often would two equal ways differ by as
much at random? "again" must not differ from autocast, and "broken" must, or there are too few
seeds to show anything; the output says so then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.stats import permutation_test
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet, resnet50

from course.data import crop_set
from course.data.images import normalised
from course.training.precision import HALF
from fast_resnet import convert, formulas, plain
from research.sweep import command, device

REFERENCE = "autocast"
P = 0.05  # less likely than that at random: a different training
LAST = 20  # the last losses
MEASURES = ("mean_loss", "last_loss", "val_top1", "steps_to_accuracy")
EVERY = 10  # steps between two looks at the accuracy
ON_GPU = torch.cuda.is_available()
WAYS = ("fp32", REFERENCE, *(["compile"] if ON_GPU else []), "algebra", "again", "broken")
SEEDS = 6 if ON_GPU else 8
HOW = {
    "steps": 240 if ON_GPU else 60,
    "batch": 256 if ON_GPU else 64,
    "lr": 0.02 if ON_GPU else 0.1,
    "accuracy": 0.3 if ON_GPU else 0.0,  # the steps to it are counted; 0: they are not
    "precision": "fp16" if ON_GPU else "bf16",
}


def plan() -> Iterator[dict[str, Any]]:
    """Each way with each seed."""
    for way in WAYS:
        first = 1000 if way == "again" else 0
        for seed in range(first, first + SEEDS):
            yield {"way": way, "seed": seed, "data": "crops"} | HOW


@dataclass
class Data:
    """Images on the device as bytes, with their labels."""

    images: torch.Tensor
    labels: torch.Tensor
    val_images: torch.Tensor
    val_labels: torch.Tensor
    classes: int


@cache
def crops(train: int, val: int) -> Data:
    """The first crops of each split, 32 pixels."""
    root = crop_set.ensure()
    both = [crop_set.Crops(root, split) for split in crop_set.SPLITS]
    chosen = [split.first(count) for split, count in zip(both, (train, val))]
    tensors = [each.to(device()) for split in chosen for each in (split.images, split.labels)]
    return Data(*tensors, len(both[0].classes))


class Narrow(ResNet):
    """A block in each layer, with an eighth of ResNet-50's channels: for a CPU."""

    def __init__(self, classes: int) -> None:
        super().__init__(Bottleneck, [1] * 4, zero_init_residual=True)
        self.fc = nn.Linear(self.inplanes, classes)

    def _make_layer(self, block: type, planes: int, *rest: Any, **options: Any) -> nn.Sequential:
        return super()._make_layer(block, planes // 8, *rest, **options)


@contextmanager
def forgotten() -> Iterator[None]:
    """BatchNorm's backward without k3: the variance taken for a constant."""
    complete = formulas.corrections

    def without(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        k2, k3 = complete(*given)
        mean = given[2]
        return k2 + k3 * mean, torch.zeros_like(k3)

    formulas.corrections = without
    try:
        yield
    finally:
        formulas.corrections = complete


def network(way: str, classes: int, seed: int) -> nn.Module:
    """The network that a way trains, with a seed's weights."""
    torch.manual_seed(seed)
    created = resnet50(num_classes=classes, zero_init_residual=True) if ON_GPU else Narrow(classes)
    model = created.to(device(), memory_format=torch.channels_last)
    if way in ("algebra", "broken"):  # the broken way is the plain form's
        model = convert(model) if way == "algebra" and ON_GPU else plain.convert(model)
    return torch.compile(model) if way == "compile" else model


def measure(way: str, seed: int, data: str, **how: Any) -> dict[str, float]:
    """What one training comes to."""
    images = crops(65_536, 4096) if ON_GPU else crops(65_536, 512)
    with forgotten() if way == "broken" else nullcontext():
        return train(way, seed, images, **how)


def train(
    way: str,
    seed: int,
    data: Data,
    steps: int,
    batch: int,
    lr: float,
    accuracy: float,
    precision: str,
) -> dict[str, float]:
    """Train one network: its losses and its accuracy."""
    model = network(way, data.classes, seed)
    precision = "fp32" if way == "fp32" else precision
    autocast = torch.autocast(device().type, HALF.get(precision), enabled=precision in HALF)
    scaler = torch.amp.GradScaler(device().type, enabled=precision == "fp16")
    optimizer = torch.optim.SGD(model.parameters(), lr, 0.9, weight_decay=5e-5)
    order = torch.Generator().manual_seed(seed)
    losses, reached = [], steps
    for step in range(steps):
        taken = torch.randint(len(data.labels), (batch,), generator=order).to(device())
        flips = torch.rand(batch, 1, 1, 1, generator=order).to(device()) < 0.5
        images = data.images[taken]
        images = normalised(torch.where(flips, images.flip(3), images))
        with autocast:
            scores = model(images.to(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(scores, data.labels[taken])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
        looks = accuracy and reached == steps and step % EVERY == EVERY - 1
        if looks and top1(model, data, autocast) >= accuracy:
            reached = step + 1
    curve = torch.stack(losses).float().cpu()
    found = {"mean_loss": curve.mean().item(), "last_loss": curve[-LAST:].mean().item()}
    found["val_top1"] = top1(model, data, autocast)
    return found | ({"steps_to_accuracy": float(reached)} if accuracy else {})


@torch.no_grad()
def top1(model: nn.Module, data: Data, autocast: Any) -> float:
    """The accuracy on the validation images."""
    model.eval()
    right = 0
    for images, labels in zip(data.val_images.split(512), data.val_labels.split(512)):
        with autocast:
            right += (model(normalised(images)).argmax(1) == labels).sum()
    model.train()
    return float(right) / len(data.val_labels)


def chance(one: list[float], other: list[float]) -> float:
    """p of an exact permutation test of the difference of two means; NaN counts as infinite."""
    values = [np.nan_to_num(np.array(each), nan=1e9, posinf=1e9) for each in (one, other)]
    if np.array_equal(*map(np.sort, values)):
        return 1.0

    def difference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return a.mean(axis=axis) - b.mean(axis=axis)

    return float(permutation_test(values, difference, vectorized=True, n_resamples=20_000).pvalue)


def verdict(rows: list[dict[str, Any]]) -> bool:
    """Print each way beside the reference; whether all train alike and the seeds can show it.

    Several measures of one way are compared: the limit is divided among them.
    """
    names = [name for name in MEASURES if name in rows[0]]
    ways = dict.fromkeys(row["way"] for row in rows)
    values = {
        way: {name: [row[name] for row in rows if row["way"] == way] for name in names}
        for way in ways
    }
    fine = True
    for way, by_name in values.items():
        for name, each in by_name.items():
            print(f"{way:9} {name:18} {np.mean(each):.4g} ± {np.std(each, ddof=1):.2g}")
        if way != REFERENCE:
            p = {name: chance(each, values[REFERENCE][name]) for name, each in by_name.items()}
            least = min(p, key=p.get)
            differs = p[least] * len(p) < P
            said = "a different training" if differs else "no difference"
            print(f"{way}: {said} ({least}, p = {p[least]:.2g})")
            fine &= differs == (way == "broken")
    print("as expected" if fine else "not as expected: see above")
    return fine


if __name__ == "__main__":
    known = command(__doc__, plan(), measure)
    rows = [row for row in known if "failed" not in row]
    if {row["way"] for row in rows} < {*WAYS}:
        raise SystemExit("no verdict yet: measure all ways into the same file")
    sys.exit(not verdict(rows))
