"""Is it the same training? Several seeds of each way to train, and a test of their distributions.

    python benchmarks/parity.py                       # on the GPU, or small on the processor
    python benchmarks/parity.py --data default --seeds 6 --steps 240
    python benchmarks/parity.py --ways algebra --out trained.jsonl    # one of several at once

Each way trains the same network from the same seeds on the same images: "fp32", "autocast",
"compile" and "algebra", and "again", which is autocast with other seeds, and "broken", which is the
algebra in plain PyTorch with one term of its backward forgotten. Every way is compared with
autocast: the mean loss over all steps, the last ones' loss, validation accuracy, and, on the crops,
the steps to an accuracy. p is that of an exact permutation test: how often would two equal ways
differ so much by chance? "again" must not be told from autocast, and "broken" must be, or this
benchmark has too few seeds to say anything; then it says so.

What --out has already, trained alike, is not trained again. So each way may be a process of its
own, and one that names all of them afterwards gives the verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet, resnet50

from course.config import Config
from course.data import crop_set
from course.data.images import normalised
from course.data.loader import image_sets
from course.training.precision import HALF
from fast_resnet import convert, formulas, plain

WAYS = ("fp32", "autocast", "compile", "algebra", "again", "broken")
REFERENCE = "autocast"
P = 0.05  # less likely than that by chance: another training
FEWEST = 5  # seeds with which an exact test of four measures can come below P
LAST = 20  # so many losses are the last ones
EVERY = 10  # steps between two looks at the accuracy


@dataclass
class Data:
    """Images that lie on the device as bytes, and how many steps train on them."""

    images: torch.Tensor
    labels: torch.Tensor
    val_images: torch.Tensor
    val_labels: torch.Tensor
    classes: int


class Narrow(ResNet):
    """A block in each layer, with an eighth of ResNet-50's channels: for a processor."""

    def __init__(self, classes: int) -> None:
        super().__init__(Bottleneck, [1] * 4, zero_init_residual=True)
        self.fc = nn.Linear(self.inplanes, classes)

    def _make_layer(self, block: type, planes: int, *rest: Any, **options: Any) -> nn.Sequential:
        return super()._make_layer(block, planes // 8, *rest, **options)


def crops(device: torch.device, train: int, val: int) -> Data:
    """The crops, 32 pixels."""
    root = crop_set.ensure()
    both = [crop_set.Crops(root, split) for split in crop_set.SPLITS]
    few = [split.first(count) for split, count in zip(both, (train, val))]
    tensors = [each.to(device) for split in few for each in (split.images, split.labels)]
    return Data(*tensors, len(both[0].classes))


def default(device: torch.device, px: int, times: int) -> Data:
    """The default set, each training image cropped at random so many times."""
    sets = image_sets(Config(image_px=px))
    shown = [torch.utils.data.ConcatDataset([sets.train] * times), sets.val]
    tensors = []
    for each in shown:
        batches = torch.utils.data.DataLoader(each, 256, num_workers=torch.get_num_threads())
        images, labels = zip(*batches)
        tensors += [torch.cat(images).to(device), torch.cat(labels).to(device)]
    return Data(*tensors, sets.classes)


@contextmanager
def forgotten() -> Iterator[None]:
    """BatchNorm's backward without k3: the variance taken for a constant."""
    whole = formulas.corrections

    def without(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        k2, k3 = whole(*given)
        mean = given[2]
        return k2 + k3 * mean, torch.zeros_like(k3)

    formulas.corrections = without
    try:
        yield
    finally:
        formulas.corrections = whole


def network(way: str, data: Data, seed: int, asked: argparse.Namespace) -> nn.Module:
    """The network that a way trains, with a seed's weights."""
    torch.manual_seed(seed)
    on_gpu = data.images.is_cuda
    made = resnet50(num_classes=data.classes, zero_init_residual=True) if on_gpu else None
    model = (made or Narrow(data.classes)).to(data.images.device)
    model = model.to(memory_format=torch.channels_last)
    if way in ("algebra", "broken"):
        by_kernels = way == "algebra" and on_gpu  # the broken way is the plain form's
        model = convert(model) if by_kernels else plain.convert(model)
    return torch.compile(model) if way == "compile" else model


def train(way: str, data: Data, seed: int, asked: argparse.Namespace) -> dict[str, float]:
    """What one training comes to."""
    model, device = network(way, data, seed, asked), data.images.device
    precision = "fp32" if way == "fp32" else asked.precision
    autocast = torch.autocast(device.type, HALF.get(precision), enabled=precision in HALF)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    optimizer = torch.optim.SGD(model.parameters(), asked.lr, 0.9, weight_decay=5e-5)
    order = torch.Generator().manual_seed(seed)
    losses, reached = [], asked.steps
    for step in range(asked.steps):
        taken = torch.randint(len(data.labels), (asked.batch,), generator=order).to(device)
        flips = torch.rand(asked.batch, 1, 1, 1, generator=order).to(device) < 0.5
        images = data.images[taken]
        images = normalised(torch.where(flips, images.flip(3), images))
        with autocast:
            loss = nn.functional.cross_entropy(
                model(images.to(memory_format=torch.channels_last)), data.labels[taken]
            )
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
        looks = asked.accuracy and reached == asked.steps and step % EVERY == EVERY - 1
        if looks and accuracy(model, data, autocast) >= asked.accuracy:
            reached = step + 1
    curve = torch.stack(losses).float().cpu()
    found = {"mean_loss": curve.mean().item(), "last_loss": curve[-LAST:].mean().item()}
    found["val_top1"] = accuracy(model, data, autocast)
    return found | ({"steps_to_accuracy": float(reached)} if asked.accuracy else {})


@torch.no_grad()
def accuracy(model: nn.Module, data: Data, autocast: Any) -> float:
    """Top-1 on the validation images."""
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

    from scipy.stats import permutation_test  # only here: it takes half a second

    def difference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return a.mean(axis=axis) - b.mean(axis=axis)

    return float(permutation_test(values, difference, vectorized=True, n_resamples=20_000).pvalue)


def compared(found: dict[str, list[dict[str, float]]]) -> Iterator[dict[str, Any]]:
    """For each way and measure its mean and spread, and p against the reference."""
    for way, trained in found.items():
        for measure in trained[0]:
            values = [each[measure] for each in trained]
            theirs = [each[measure] for each in found[REFERENCE]]
            yield {
                "way": way,
                "measure": measure,
                "mean": float(np.mean(values)),
                "deviation": float(np.std(values, ddof=1)),
                "p": None if way == REFERENCE else chance(values, theirs),
            }


def verdict(rows: list[dict[str, Any]]) -> tuple[bool, list[str]]:
    """Whether all ways asked about train alike, and this benchmark can tell; with what to say.

    Several measures of one way are looked at: the limit is shared out among them.
    """
    ways: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["p"] is not None:
            ways.setdefault(row["way"], []).append(row)
    said, fine = [], True
    for way, each in ways.items():
        least = min(each, key=lambda row: row["p"])
        differs = least["p"] * len(each) < P
        seen = f"{least['measure']}, p = {least['p']:.2g}"
        said.append(f"{way}: {'another training' if differs else 'no difference'} ({seen})")
        wanted = way == "broken"
        fine &= differs == wanted
        if differs != wanted and way in ("again", "broken"):
            said.append(f"  so nothing is shown: {way} was to be {'told' if wanted else 'equal'}")
    return fine, said


def options() -> argparse.Namespace:
    """What is asked for; sizes follow the device unless they are given."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    on_gpu = torch.cuda.is_available()
    asked.add_argument("--data", choices=["crops", "default"], default="crops")
    asked.add_argument("--ways", nargs="+", choices=WAYS, default=None)
    asked.add_argument("--seeds", type=int, default=6)
    asked.add_argument("--steps", type=int, default=240 if on_gpu else 60)
    asked.add_argument("--batch", type=int, default=256 if on_gpu else 64)
    asked.add_argument("--lr", type=float, default=0.02)
    asked.add_argument("--accuracy", type=float, default=0.3, help="of the crops; 0: not looked at")
    asked.add_argument("--precision", choices=HALF, default="fp16" if on_gpu else "bf16")
    asked.add_argument("--px", type=int, default=224, help="of the default set's crops")
    asked.add_argument("--out", type=Path, help="each training as a line of JSON; added to")
    found = asked.parse_args()
    slow = () if on_gpu else ("compile",)  # compiling for a processor takes a minute a seed
    found.ways = found.ways or [way for way in WAYS if way not in slow]
    if REFERENCE not in found.ways and not found.out:
        found.ways.insert(0, REFERENCE)
    found.accuracy *= found.data == "crops"
    if found.seeds < FEWEST:
        asked.error(f"--seeds {found.seeds} can tell nothing apart: {FEWEST} or more")
    return found


HOW = ("data", "steps", "batch", "lr", "accuracy", "precision", "px")  # each training is one of


def trained_already(asked: argparse.Namespace) -> dict[tuple[str, int], dict[str, float]]:
    """What --out has of trainings as they are asked for, by way and seed."""
    lines = asked.out.read_text().splitlines() if asked.out and asked.out.exists() else []
    how, found = {name: getattr(asked, name) for name in HOW}, {}
    for one in map(json.loads, lines):
        if {name: one.pop(name, None) for name in HOW} == how:
            found[one.pop("way"), one.pop("seed")] = one
    return found


def train_all(asked: argparse.Namespace, device: torch.device) -> dict[str, list[dict[str, float]]]:
    """What each way and seed comes to, told and kept one by one."""
    val = 4096 if device.type == "cuda" else 512
    data = crops(device, 65_536, val) if asked.data == "crops" else default(device, asked.px, 4)
    known, found = trained_already(asked), {}
    for way in asked.ways:
        first = 1000 if way == "again" else 0
        for seed in range(first, first + asked.seeds):
            one = known.get((way, seed))
            if one is None:
                broken: Callable = forgotten if way == "broken" else nullcontext
                with broken():
                    one = train(way, data, seed, asked)
                told = {"way": way, "seed": seed, **{name: getattr(asked, name) for name in HOW}}
                print(json.dumps(told | one), flush=True)
                if asked.out:
                    with asked.out.open("a") as file:
                        file.write(json.dumps(told | one) + "\n")
            found.setdefault(way, []).append(one)
    return found


def main() -> None:
    """Train, compare, print the verdict; ends with 1 where not all is as it should be."""
    asked = options()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    found = train_all(asked, device)
    if REFERENCE not in found:
        return print(f"no verdict without {REFERENCE}: name it too, with the same --out")
    rows = [*compared(found)]
    for row in rows:
        p = "" if row["p"] is None else f"  p = {row['p']:.3f}"
        print(f"{row['way']:9} {row['measure']:18} {row['mean']:.4g} ± {row['deviation']:.2g}{p}")
    fine, said = verdict(rows)
    print("\n".join(said))
    sys.exit(not fine)


if __name__ == "__main__":
    main()
