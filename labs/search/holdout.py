"""Accuracy of a trial on crops that no search validated on."""

from __future__ import annotations

import json
from functools import cache

import torch

from course import Config, Run
from course.data import crop_set, normalised, val_subset
from course.runs import write_atomically
from labs.large_batch.measurements import load_network

BATCH = 1024


@torch.no_grad()
def holdout_accuracy(run: Run) -> float:
    """Return the accuracy on all validation crops that the run did not use, and store it.

    Raises:
        ValueError: the run has not saved its weights.
    """
    if test := run.part("test"):
        return test["test_top1"]
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = load_network(run).eval().to(device)
    indices, correct = holdout_indices(run.config), 0
    for batch in indices.split(BATCH):
        scores = model(normalised(_crops().images[batch].to(device)))
        correct += int((scores.argmax(dim=1).cpu() == _crops().labels[batch]).sum())
    accuracy = correct / len(indices)
    result = {"test_top1": accuracy, "test_images": len(indices)}
    write_atomically(run.folder / "test.json", json.dumps(result, indent=1) + "\n")
    return accuracy


def holdout_indices(config: Config) -> torch.Tensor:
    """Return the indices of the validation crops that a run with this config does not use."""
    crops = _crops()
    used = val_subset(crops, config).indices[: config.val_steps * config.batch_size]
    unused = torch.ones(len(crops), dtype=torch.bool)
    unused[used] = False
    return unused.nonzero()[:, 0]


@cache
def _crops() -> crop_set.Crops:
    return crop_set.Crops(crop_set.ensure(), "val")
