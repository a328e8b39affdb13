"""A small network that learns handwritten digits in fp16 on any CPU, with and without a scale."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import torch
from torch import nn

from course.data import handwritten_digits
from labs.mixed_precision.scaling import ScaledStep
from trainspeed.resources import one_thread

BATCH = 64
INITIAL_SCALE, INTERVAL = 2.0**40, 20  # so that 200 steps show overflows and growth


def digit_accuracy(
    scaled_step: ScaledStep, loss_divisor: int = BATCH, steps: int = 200
) -> pd.DataFrame:
    """Train a small network in fp32, and in fp16 without and with `scaled_step`.

    Four layers of 64 and one of 10 learn with Adam, which divides each update by the size of its
    gradients, so that a small loss changes little in fp32.

    Args:
        loss_divisor: divides the sum of the loss over a batch. 64, the batch size, makes it the
            mean; the number of a batch's pixels makes each gradient as small as in a network that
            has a label per pixel.

    Returns:
        By step, columns fp32, fp16, "fp16, loss scaled": the share of the batch that was right
        before the update; and scale: that of the loss in the last of the three.
    """
    runs = {"fp32": (False, None), "fp16": (True, None), "fp16, loss scaled": (True, scaled_step)}
    columns = {}
    with one_thread():  # several would wait for each other, because the matrices are small
        for name, (fp16, step) in runs.items():
            columns[name], columns["scale"] = zip(*_train(fp16, step, steps, loss_divisor))
    return pd.DataFrame(columns)[[*runs, "scale"]].rename_axis("step")


def _train(
    fp16: bool, scaled_step: ScaledStep | None, steps: int, loss_divisor: int
) -> Iterator[tuple[float, float]]:
    """Train on random batches, and yield the share of each that was right, and the scale."""
    torch.manual_seed(0)  # the same weights and batches for all
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    images, labels = handwritten_digits()
    scale, good_steps = INITIAL_SCALE if scaled_step else 1.0, 0
    for _ in range(steps):
        batch = torch.randint(len(images), (BATCH,))
        with torch.autocast("cpu", torch.float16, enabled=fp16):
            scores = model(images[batch])
            loss = nn.functional.cross_entropy(scores, labels[batch], reduction="sum")
        optimizer.zero_grad()
        (loss / loss_divisor * scale).backward()
        yield (scores.argmax(dim=1) == labels[batch]).double().mean().item(), scale
        if scaled_step:
            scale, good_steps = scaled_step(optimizer, scale, good_steps, interval=INTERVAL)
        else:
            optimizer.step()
