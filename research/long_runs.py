"""Train 90 epochs with the rung `imagenet`, interrupted, and with a plain loop of its recipe.

    python -m research.long_runs OUT.jsonl --seeds 0 1 2
    python -m research.long_runs OUT.jsonl --seeds 0 --only plain    # one of several processes
    python -m research.long_runs OUT.jsonl --judge

The run is cancelled after a third and two thirds of its steps, wherever it then is, and continues
from its last checkpoint on another number of GPUs. The plain loop is torchvision's first recipe
(references/classification/train.py) with that package's own transforms, in fp32, with nothing from
the course but the folder of images; its blocks start as the identity, as the course's do. They are
equal if the results of their seeds overlap.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader
from torchvision import models
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from course import launch, resume, rung
from course.data import default_set
from trainspeed.resources import core_count

BATCH, LR_BATCH, LR = 64, 256, 0.1
NORMALISE = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
             v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]  # fmt: skip
MEASURES = {"val_top1": "accuracy after the last epoch", "val_loss": "loss after the last epoch",
            "third_top1": "mean accuracy of the first third"}  # fmt: skip


def summary(epochs: list[dict[str, float]]) -> dict[str, float]:
    """Return the measures of a training from its epochs' results."""
    early = epochs[: max(1, len(epochs) // 3)]
    third = float(np.mean([epoch["val_top1"] for epoch in early]))
    return {name: epochs[-1][name] for name in ("val_top1", "val_loss")} | {"third_top1": third}


def train_plain(seed: int, epochs: int, workers: int, px: int) -> list[dict[str, float]]:
    """Train with the recipe, one process and one device; return each epoch's results."""
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("highest")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    root = default_set.ensure()
    random = [v2.RandomResizedCrop(px), v2.RandomHorizontalFlip(), *NORMALISE]
    centre = [v2.Resize(px * 256 // 224), v2.CenterCrop(px), *NORMALISE]
    train = ImageFolder(root / "train", v2.Compose(random))
    val = ImageFolder(root / "val", v2.Compose(centre))
    loading = {"num_workers": workers, "pin_memory": True, "persistent_workers": workers > 0}
    batches = DataLoader(train, BATCH, shuffle=True, drop_last=True, **loading)
    val_batches = DataLoader(val, BATCH, **loading)
    model = models.resnet50(num_classes=len(train.classes), zero_init_residual=True).to(device)
    rate = LR * BATCH / LR_BATCH
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=1e-4)
    schedule, criterion, results = StepLR(optimizer, epochs // 3), nn.CrossEntropyLoss(), []
    for _ in range(epochs):
        model.train()
        for images, labels in batches:
            optimizer.zero_grad()
            criterion(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
        schedule.step()
        model.eval()
        loss = hits = 0.0
        with torch.no_grad():
            for images, labels in val_batches:
                scores, labels = model(images.to(device)), labels.to(device)
                loss += nn.functional.cross_entropy(scores, labels, reduction="sum").item()
                hits += (scores.argmax(1) == labels).sum().item()
        results.append({"val_top1": hits / len(val), "val_loss": loss / len(val)})
    return results


def train_interrupted(
    seed: int, epochs: int, workers: int, px: int, gpus: list[int], stored: str
) -> tuple[list[dict[str, float]], list[int]]:
    """Train the rung; return each epoch's results, and the steps in which it was cancelled."""
    config = rung("imagenet", data="default", batch_size=BATCH, epochs=epochs, seed=seed,
                  lr_step_size=epochs // 3, save_every=50, workers=workers, tracker="",
                  image_px=px, warmup_steps=8, format=stored)  # fmt: skip
    total = 1024 // BATCH * epochs
    run = launch("solutions/train.py", config, gpus=gpus[0])
    steps = []
    for part, count in enumerate(gpus[1:], 1):
        while run.status in ("queued", "running") and len(run.steps) < total * part // len(gpus):
            time.sleep(0.2)
        if run.status not in ("queued", "running"):
            logs = "\n".join(path.read_text()[-2000:] for path in run.logs)
            raise SystemExit(f"{run.name} [{run.status}] ended before it was cancelled:\n{logs}")
        steps.append(len(run.steps))
        run = resume(run.cancel(), gpus=count)
    run.wait()
    return run.record.epochs, steps


def judge(path: Path) -> None:
    """Print each measure of both ways, and whether their seeds' results overlap."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for name, title in MEASURES.items():
        plain, ours = ([r[name] for r in rows if r["way"] == way] for way in ("plain", "course"))
        if not plain or not ours:
            raise SystemExit(f"{path} has no results of both ways")
        overlap = min(plain) <= max(ours) and min(ours) <= max(plain)
        values = "; ".join(
            f"{way} {min(v):.3f} to {max(v):.3f} ({len(v)} seeds)"
            for way, v in (("plain", plain), ("interrupted", ours))
        )
        print(f"{title}: {values}: {'they overlap' if overlap else 'APART'}")


def main() -> None:
    """Train what the arguments ask for, and append a row for each training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", choices=("plain", "course"))
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--px", type=int, default=224)
    parser.add_argument("--workers", type=int, default=core_count())
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 1])
    parser.add_argument("--format", default="files", help="of the interrupted run's images")
    parser.add_argument("--judge", action="store_true")
    options = parser.parse_args()
    if options.judge:
        judge(options.out)
        return
    sizes = options.epochs, options.workers, options.px
    for seed in options.seeds:
        for way in [options.only] if options.only else ["plain", "course"]:
            begin = time.perf_counter()
            row: dict[str, Any] = {"way": way, "seed": seed, "epochs": options.epochs}
            row |= {"px": options.px}
            if way == "plain":
                results = train_plain(seed, *sizes)
            else:
                results, steps = train_interrupted(seed, *sizes, options.gpus, options.format)
                row |= {"gpus": options.gpus, "cancelled_in_steps": steps, "format": options.format}
            row |= summary(results) | {"seconds": round(time.perf_counter() - begin, 1)}
            row |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
            row["top1_by_epoch"] = [round(epoch["val_top1"], 4) for epoch in results]
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
