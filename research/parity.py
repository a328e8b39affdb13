"""Test whether ways to train are equivalent: several seeds of each, compared statistically.

    python -m research.parity OUT.jsonl               # large on a GPU, small on a CPU
    python -m research.parity OUT.jsonl --only algebra    # one of several processes at once

Each way trains the same network from the same seeds on the same images: "fp32", "autocast",
"compile" and "algebra"; "8 bits" is autocast whose stored activations are rounded to 8 bits;
"again" is autocast with different seeds, and "broken" is the algebra in plain PyTorch without one
term of its backward. Every way is compared with autocast: the mean loss
over all steps, the last steps' loss, validation accuracy, and the steps to an accuracy. p is that
of an exact permutation test: the probability that two equal ways differ by as much at random.
"again" must not differ from autocast, and "broken" must; otherwise there are too few seeds to show
anything, and the output says so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
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
P = 0.05  # a smaller p means a different training
LAST_STEPS = 20  # number of last steps whose losses are averaged
MEASURES = ("mean_loss", "last_loss", "val_top1", "steps_to_accuracy")
EVERY = 10  # steps between two checks of the accuracy
ON_GPU = torch.cuda.is_available()
ON_GPUS = ["compile", "8 bits"] if ON_GPU else []  # on a CPU, both take too long
WAYS = ("fp32", REFERENCE, *ON_GPUS, "algebra", "again", "broken")
SEEDS = 6 if ON_GPU else 8
SETTINGS = {
    "steps": 240 if ON_GPU else 60,
    "batch": 256 if ON_GPU else 64,
    "lr": 0.02 if ON_GPU else 0.1,
    "accuracy": 0.3 if ON_GPU else 0.0,  # count the steps until it is reached; 0: do not count
    "precision": "fp16" if ON_GPU else "bf16",
}


def plan() -> Iterator[dict[str, Any]]:
    """List each way with each seed."""
    for way in WAYS:
        first = 1000 if way == "again" else 0
        for seed in range(first, first + SEEDS):
            yield {"way": way, "seed": seed, "data": "crops"} | SETTINGS


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
    """Load the first crops of each split, 32 pixels."""
    root = crop_set.ensure()
    splits = [crop_set.Crops(root, split) for split in crop_set.SPLITS]
    parts = [split.first(count) for split, count in zip(splits, (train, val))]
    tensors = [tensor.to(device()) for split in parts for tensor in (split.images, split.labels)]
    return Data(*tensors, len(splits[0].classes))


class Narrow(ResNet):
    """A block in each layer, with an eighth of ResNet-50's channels: for a CPU."""

    def __init__(self, classes: int) -> None:
        super().__init__(Bottleneck, [1] * 4, zero_init_residual=True)
        self.fc = nn.Linear(self.inplanes, classes)

    def _make_layer(self, block: type, planes: int, *rest: Any, **options: Any) -> nn.Sequential:
        return super()._make_layer(block, planes // 8, *rest, **options)


@contextmanager
def without_k3() -> Iterator[None]:
    """Drop k3 from BatchNorm's backward, as if the variance were a constant."""
    complete = formulas.corrections

    def wrong_corrections(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        k2, k3 = complete(*arguments)
        mean = arguments[2]
        return k2 + k3 * mean, torch.zeros_like(k3)

    formulas.corrections = wrong_corrections
    try:
        yield
    finally:
        formulas.corrections = complete


def in_8_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Round a tensor that backward needs as if it were stored in fp8, scaled to its largest value.

    Only activations [n, C, h, w] are rounded, not weights; the next layer gets them unrounded.
    """
    if tensor.dim() != 4 or len(tensor) != SETTINGS["batch"] or not tensor.is_floating_point():
        return tensor
    scale = tensor.abs().amax().float().clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max
    return ((tensor / scale).to(torch.float8_e4m3fn).float() * scale).to(tensor.dtype)


def network(way: str, classes: int, seed: int) -> nn.Module:
    """Create the network that a way trains, with a seed's weights."""
    torch.manual_seed(seed)
    created = resnet50(num_classes=classes, zero_init_residual=True) if ON_GPU else Narrow(classes)
    model = created.to(device(), memory_format=torch.channels_last)
    if way in ("algebra", "broken"):  # the broken way is the plain form's
        model = convert(model) if way == "algebra" and ON_GPU else plain.convert(model)
    return torch.compile(model) if way == "compile" else model


def measure(way: str, seed: int, data: str, **settings: Any) -> dict[str, float]:
    """Train one network and return its results."""
    images = crops(65_536, 4096) if ON_GPU else crops(65_536, 512)
    changes = {
        "broken": without_k3,
        "8 bits": partial(torch.autograd.graph.saved_tensors_hooks, in_8_bits, lambda kept: kept),
    }
    with changes.get(way, nullcontext)():
        return train(way, seed, images, **settings)


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
    """Train one network; return its losses and its accuracy."""
    model = network(way, data.classes, seed)
    precision = "fp32" if way == "fp32" else precision
    autocast = torch.autocast(device().type, HALF.get(precision), enabled=precision in HALF)
    scaler = torch.amp.GradScaler(device().type, enabled=precision == "fp16")
    optimizer = torch.optim.SGD(model.parameters(), lr, 0.9, weight_decay=5e-5)
    order = torch.Generator().manual_seed(seed)
    losses, accuracy_steps = [], steps
    for step in range(steps):
        chosen = torch.randint(len(data.labels), (batch,), generator=order).to(device())
        flips = torch.rand(batch, 1, 1, 1, generator=order).to(device()) < 0.5
        images = data.images[chosen]
        images = normalised(torch.where(flips, images.flip(3), images))
        with autocast:
            scores = model(images.to(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(scores, data.labels[chosen])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
        evaluates = accuracy and accuracy_steps == steps and step % EVERY == EVERY - 1
        if evaluates and top1(model, data, autocast) >= accuracy:
            accuracy_steps = step + 1
    curve = torch.stack(losses).float().cpu()
    results = {"mean_loss": curve.mean().item(), "last_loss": curve[-LAST_STEPS:].mean().item()}
    results["val_top1"] = top1(model, data, autocast)
    return results | ({"steps_to_accuracy": float(accuracy_steps)} if accuracy else {})


@torch.no_grad()
def top1(model: nn.Module, data: Data, autocast: Any) -> float:
    """Return the accuracy on the validation images."""
    model.eval()
    correct = 0
    for images, labels in zip(data.val_images.split(512), data.val_labels.split(512)):
        with autocast:
            correct += (model(normalised(images)).argmax(1) == labels).sum()
    model.train()
    return float(correct) / len(data.val_labels)


def p_value(first: list[float], second: list[float]) -> float:
    """Return p of an exact permutation test of two means' difference; NaN counts as infinite."""
    values = [np.nan_to_num(np.array(sample), nan=1e9, posinf=1e9) for sample in (first, second)]
    if np.array_equal(*map(np.sort, values)):
        return 1.0

    def difference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return a.mean(axis=axis) - b.mean(axis=axis)

    return float(permutation_test(values, difference, vectorized=True, n_resamples=20_000).pvalue)


def verdict(rows: list[dict[str, Any]]) -> bool:
    """Print each way next to the reference; return whether the results are as expected.

    The limit for p is divided by the number of measures (Bonferroni).
    """
    names = [name for name in MEASURES if name in rows[0]]
    ways = dict.fromkeys(row["way"] for row in rows)
    values = {
        way: {name: [row[name] for row in rows if row["way"] == way] for name in names}
        for way in ways
    }
    as_expected = True
    for way, by_name in values.items():
        for name, sample in by_name.items():
            print(f"{way:9} {name:18} {np.mean(sample):.4g} ± {np.std(sample, ddof=1):.2g}")
        if way != REFERENCE:
            p = {name: p_value(sample, values[REFERENCE][name]) for name, sample in by_name.items()}
            measure = min(p, key=p.get)
            differs = p[measure] * len(p) < P
            conclusion = "a different training" if differs else "no difference"
            print(f"{way}: {conclusion} ({measure}, p = {p[measure]:.2g})")
            as_expected &= way == "8 bits" or differs == (way == "broken")
    print("as expected" if as_expected else "not as expected: see above")
    return as_expected


if __name__ == "__main__":
    known = command(__doc__, plan(), measure)
    rows = [row for row in known if "failed" not in row]
    if {row["way"] for row in rows} < {*WAYS}:
        raise SystemExit("no verdict yet: measure all ways into the same file")
    sys.exit(not verdict(rows))
