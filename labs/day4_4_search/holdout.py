"""What a network says of images that its search has not looked at. It imports PyTorch: seconds."""

from __future__ import annotations

import json
from functools import cache

import torch
from torch import nn

from course.config import Config
from course.data import crop_set
from course.data.crop_set import Crops
from course.data.loader import normalised, val_subset
from course.runs.files import write_atomically
from course.runs.run import TEST_FILE, Run
from course.training import models

AT_ONCE = 1024  # images


def tested(run: Run) -> float:
    """The accuracy on all crops for validation that the run did not validate on.

    Raises:
        ValueError: the run has written no weights, and nobody else has tested it.
    """
    if known := run.test:
        return known["test_top1"]
    path = run.folder / "weights.pt"
    if not path.exists():
        raise ValueError(f"{run} has no weights.pt: launch it with save_weights=True, and wait")
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    chosen = unseen(run.config)
    weights = torch.load(path, map_location=device, weights_only=True)
    model = models.create(run.config.model, len(weights["fc.bias"])).to(device)
    model.load_state_dict(weights)
    right = _right(model.eval(), _crops(), chosen, device)
    write_atomically(
        run.folder / TEST_FILE,
        json.dumps({"test_top1": right / len(chosen), "test_images": len(chosen)}, indent=1) + "\n",
    )
    return right / len(chosen)


def unseen(config: Config) -> torch.Tensor:
    """The numbers of the crops for validation that a run with this config does not look at."""
    looked_at = val_subset(_crops(), config).indices[: config.val_steps * config.batch_size]
    left = torch.ones(len(_crops()), dtype=torch.bool)
    left[looked_at] = False
    return left.nonzero()[:, 0]


@cache
def _crops() -> Crops:
    return Crops(crop_set.ensure(), "val")


@torch.no_grad()
def _right(model: nn.Module, crops: Crops, chosen: torch.Tensor, device: torch.device) -> int:
    right = 0
    for numbers in chosen.split(AT_ONCE):
        scores = model(normalised(crops.images[numbers].to(device)))
        right += int((scores.argmax(dim=1).cpu() == crops.labels[numbers]).sum())
    return right
