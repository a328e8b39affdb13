"""Small networks that learn handwritten digits on any CPU, with and without loss scaling."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import torch
from torch import nn

from course.data import handwritten_digits
from trainspeed.resources import one_thread

BATCH = 64
# By name: whether autocast uses fp16, and whether a scaler scales the loss.
RUNS = {"fp32": (False, False), "fp16": (True, False), "fp16, loss scaled": (True, True)}


def digit_accuracy(loss_divisor: int = BATCH, steps: int = 200) -> pd.DataFrame:
    """Train a small network in fp32, and in fp16 without and with loss scaling.

    Four layers of 64 and one of 10 learn with Adam, which divides each update by the size of its
    gradients, so that a small loss changes little in fp32.

    Args:
        loss_divisor: divides the sum of the loss over a batch. 64, the batch size, makes it the
            mean; the number of a batch's pixels makes each gradient as small as in a network that
            has a label per pixel.

    Returns:
        Columns fp32, fp16, "fp16, loss scaled": the share of the batch that was right, before the
        step's update, by step.
    """
    accuracy = {}
    for name, (fp16, scaled) in RUNS.items():
        torch.manual_seed(0)  # the same weights and batches for all
        hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
        model = nn.Sequential(*hidden, nn.Linear(64, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        with one_thread():  # several would wait for each other, because the matrices are small
            accuracy[name] = list(_train(model, optimizer, scaler, steps, fp16, loss_divisor))
    return pd.DataFrame(accuracy).rename_axis("step")


def loss_scale_history(
    steps: int = 80, init_scale: float = 2.0**24, growth_interval: int = 10
) -> pd.DataFrame:
    """Train two layers in fp16, and return the scale: columns step, scale, skipped.

    `skipped` is True if a gradient overflowed and the weights stayed as they were. A scale that
    grows after 10 good steps shows its growth; PyTorch's default is 2,000.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    scales = [init_scale, *(scaler.get_scale() for _ in _train(model, optimizer, scaler, steps))]
    scale = pd.Series(scales)
    table = pd.DataFrame({"step": scale.index, "scale": scale, "skipped": scale.diff(-1) > 0})
    return table.head(steps)


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    steps: int,
    fp16: bool = True,
    loss_divisor: int = BATCH,
) -> Iterator[float]:
    """Train on random batches, and yield the share of each that was right."""
    images, labels = handwritten_digits()
    for _ in range(steps):
        batch = torch.randint(len(images), (BATCH,))
        with torch.autocast("cpu", torch.float16, enabled=fp16):
            scores = model(images[batch])
            loss = nn.functional.cross_entropy(scores, labels[batch], reduction="sum")
        optimizer.zero_grad()
        scaler.scale(loss / loss_divisor).backward()
        scaler.step(optimizer)
        scaler.update()
        yield (scores.argmax(dim=1) == labels[batch]).double().mean().item()
