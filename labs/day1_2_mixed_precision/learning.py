"""A training that fp16 spoils without loss scaling: a small network, on any CPU, in seconds."""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from labs.day1_2_mixed_precision.rounding import handwritten_digits

BATCH = 64
# Of a run: its name, does autocast take fp16, does a scaler scale the loss?
RUNS = (("fp32", False, False), ("fp16", True, False), ("fp16, loss scaled", True, True))


def learned_digits(divided_by: int = BATCH, steps: int = 200) -> pd.DataFrame:
    """How a small network learns handwritten digits: in fp32, and in fp16 without and with scaling.

    Five layers, four of 64 and one of 10, learn scikit-learn's digits on the CPU with Adam.
    Adam divides each update by the size of its gradients, so a small loss alone does little harm.

    Args:
        divided_by: the loss is the sum over a batch of 64 digits, divided by this. 64 makes it
            their mean; the number of all pixels of a batch makes each gradient as small as that
            of a network with a label for every pixel.

    Returns:
        Columns fp32, fp16, "fp16, loss scaled": which share of a step's batch was right, before
        the step's update. The index is the step.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other at matrices as small as these
    try:
        right = {name: _train(*how, divided_by, steps) for name, *how in RUNS}
    finally:
        torch.set_num_threads(threads)
    return pd.DataFrame(right).rename_axis("step")


def _train(fp16: bool, scaled: bool, divided_by: int, steps: int) -> list[float]:
    """The share that was right in every step."""
    torch.manual_seed(0)  # the same weights and batches for all
    images, labels = handwritten_digits()
    hidden = [part for _ in range(4) for part in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    right = []
    for _ in range(steps):
        batch = torch.randint(len(images), (BATCH,))
        with torch.autocast("cpu", torch.float16, enabled=fp16):
            scores = model(images[batch])
            loss = nn.functional.cross_entropy(scores, labels[batch], reduction="sum") / divided_by
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        right.append((scores.argmax(dim=1) == labels[batch]).double().mean().item())
    return right
