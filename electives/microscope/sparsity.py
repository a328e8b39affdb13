"""2:4 sparsity: its recorded speed on an H100, and its accuracy in a small network on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from course.data import handwritten_digits
from course.runs import recorded_table

Prune = Callable[[torch.Tensor], torch.Tensor]
IMAGES = 1200  # for training; 597 for validation
STEPS, TUNING_STEPS, LR = 600, 200, 0.05


def prune(weight: torch.Tensor) -> torch.Tensor:
    """Return a copy in which only the two largest magnitudes of each four neighbours remain."""
    fours = weight.reshape(-1, 4)
    kept = fours.abs().topk(2, dim=1).indices
    return torch.zeros_like(fours).scatter(1, kept, fours.gather(1, kept)).reshape(weight.shape)


def sparse_speeds() -> pd.DataFrame:
    """Return the H100's products by a dense and by a 2:4 sparse weight, in bf16.

    Index: m, k, n. Columns: dense_ms, sparse_ms, times_as_fast, machine.
    """
    table = recorded_table("nvidia-h100", "low_precision").query("part == 'product'")
    table = table.astype({side: int for side in "mkn"}).sort_values("flop")
    ms = 1e3 * table.pivot_table("seconds", ["m", "k", "n"], "by", sort=False)
    result = ms[["bf16", "bf16, 2:4 sparse"]].set_axis(["dense_ms", "sparse_ms"], axis=1)
    speed = result["dense_ms"] / result["sparse_ms"]
    return result.assign(times_as_fast=speed, machine=table["machine"].iloc[0])


@threadpool_limits.wrap(limits=1)  # on small matrices, threads only wait for each other
def pruned_accuracy(prune: Prune, seeds: int = 3) -> pd.DataFrame:
    """Train a small network on handwritten digits, prune its weights, and train it further.

    Weights that pruning set to zero stay zero. Some seconds.

    Index: seed. Columns: zeros (share of the weights), and the accuracy in validation: trained,
    pruned, fine_tuned.
    """
    rows = [_accuracies(prune, seed) for seed in range(seeds)]
    return pd.DataFrame(rows).rename_axis("seed")


def _accuracies(prune: Prune, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    images, labels = handwritten_digits()
    order = torch.randperm(len(images))
    train, val = order[:IMAGES], order[IMAGES:]
    layers = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])

    def accuracy() -> float:
        with torch.no_grad():
            return float((model(images[val]).argmax(1) == labels[val]).float().mean())

    def fit(steps: int, masks: list[torch.Tensor]) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        for _ in range(steps):
            batch = train[torch.randint(len(train), (64,))]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            with torch.no_grad():
                for layer, mask in zip(layers, masks):
                    layer.weight *= mask

    fit(STEPS, [])
    trained = accuracy()
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(prune(layer.weight.clone()))
    masks = [(layer.weight != 0).float() for layer in layers]
    pruned = accuracy()
    fit(TUNING_STEPS, masks)
    zeros = sum(float((1 - mask).sum()) for mask in masks) / sum(mask.numel() for mask in masks)
    return {"zeros": zeros, "trained": trained, "pruned": pruned, "fine_tuned": accuracy()}
