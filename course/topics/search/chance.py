"""What luck brings: the best of several equal trainings, and what images never looked at say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn

from course.config import Config
from course.data import crop_set
from course.data.crop_set import Crops
from course.data.loader import image_sets, normalised
from course.runs.files import read_dict, write_atomically
from course.runs.run import Run
from course.training import models

TEST = "test.json"  # in a run's folder: what images said that no search had looked at
AT_ONCE = 1024  # images


def best_of(values: Sequence[float], count: int) -> float:
    """The mean of the best of `count` values, over all ways to choose so many of them.

    Of the values in their order, the i-th is the best of C(i - 1, count - 1) choices.

    Raises:
        ValueError: more than there are, or none.
    """
    if not 1 <= count <= len(values):
        raise ValueError(f"the best of {count}: there are {len(values)} values")
    ways = [math.comb(place, count - 1) for place in range(len(values))]
    return sum(way * value for way, value in zip(ways, sorted(values))) / sum(ways)


def best_by_chance(values: Sequence[float]) -> pd.DataFrame:
    """How the best grows with the number of equal trainings: trials, best, gain over the mean."""
    mean = float(np.mean(values))
    rows = [(count, best_of(values, count)) for count in range(1, len(values) + 1)]
    return pd.DataFrame([(count, best, best - mean) for count, best in rows],
                        columns=["trials", "best", "gain"])  # fmt: skip


def check_best_of(own: Callable[[Sequence[float], int], float]) -> str:
    """Is it a function as `best_of`, to 0.005? In words, with what is wrong where something is."""
    values = [0.50, 0.51, 0.53, 0.54, 0.58, 0.52, 0.47, 0.55]
    try:
        found = {count: float(own(list(values), count)) for count in (1, 3, 8)}
    except Exception as error:  # whatever a learner's function may raise
        return f"not yet: it raises {type(error).__name__}: {error}"
    for count, got in found.items():
        due = best_of(values, count)
        if not abs(got - due) < 0.005:
            said = f"the best of {count} is {due:.3f} in the mean, and yours says {got:.3f}"
            return f"not yet: {said}{_why(values, count, got)}"
    return "correct: the mean of the best, of 1, 3 and 8 values"


def _why(values: Sequence[float], count: int, got: float) -> str:
    if count < len(values) and math.isclose(got, max(values), abs_tol=1e-9):
        return ": the best of all, however many are drawn"
    if count > 1 and abs(got - np.mean(values)) < 0.005:
        return ": the mean of the values drawn, not of their best"
    return ""


def tested(run: Run) -> float:
    """The accuracy on all crops for validation that the run did not validate on.

    Raises:
        ValueError: the run has written no weights, and nobody else has tested it.
    """
    known = read_dict(run.folder / TEST)
    if known:
        return known["test_top1"]
    path = run.folder / "weights.pt"
    if not path.exists():
        raise ValueError(f"{run} has no weights.pt: launch it with save_weights=True, and wait")
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    crops, chosen = Crops(crop_set.ensure(), "val"), unseen(run.config)
    weights = torch.load(path, map_location=device, weights_only=True)
    model = models.create(run.config.model, len(weights["fc.bias"])).to(device)
    model.load_state_dict(weights)
    right = _right(model.eval(), crops, chosen, device)
    write_atomically(
        run.folder / TEST,
        json.dumps({"test_top1": right / len(chosen), "test_images": len(chosen)}, indent=1) + "\n",
    )
    return right / len(chosen)


def unseen(config: Config) -> torch.Tensor:
    """The numbers of the crops for validation that a run with this config does not look at."""
    val = image_sets(config).val
    left = torch.ones(len(val.dataset), dtype=torch.bool)
    left[val.indices[: config.val_steps * config.batch_size]] = False
    return left.nonzero()[:, 0]


@torch.no_grad()
def _right(model: nn.Module, crops: Crops, chosen: torch.Tensor, device: torch.device) -> int:
    right = 0
    for numbers in chosen.split(AT_ONCE):
        scores = model(normalised(crops.images[numbers].to(device)))
        right += int((scores.argmax(dim=1).cpu() == crops.labels[numbers]).sum())
    return right


def validated_and_tested(runs: Iterable[Run]) -> pd.DataFrame:
    """Of each run that has been tested: its accuracy in validation, and on images never seen."""
    rows = [
        {
            "run": run.config.rung, "seed": run.config.seed, "val_top1": run.record.val_top1,
            "test_top1": tested(run), "machine": run.record.machine,
        }
        for run in runs
        if (run.folder / TEST).exists() or (run.folder / "weights.pt").exists()
    ]  # fmt: skip
    return pd.DataFrame(rows)
