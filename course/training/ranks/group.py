"""What ranks of a process group do alike in Day 4's scripts: join it, and validate together."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from course.data.loader import normalised
from course.training.precision import channels_last

if TYPE_CHECKING:
    from course.config import Config
    from course.training.recorder import Recorder


def joined(run: Recorder) -> torch.device:
    """This rank's device; with several ranks, it has joined the others, as Day 2's TODO 7 does."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = accelerator if run.config.device == "auto" and accelerator else torch.device("cpu")
    if run.world_size > 1:
        if device.type != "cpu":
            device = torch.device(device.type, run.local_rank)
            torch.accelerator.set_device_index(run.local_rank)
        waits = timedelta(seconds=run.config.collective_timeout_s)
        distributed.init_process_group(timeout=waits)
    return device


def any_rank(asked: Any, device: torch.device) -> bool:
    """Is it true on any rank? All must ask; one process alone waits for nobody."""
    if not distributed.is_initialized():
        return bool(asked)
    flag = torch.tensor(bool(asked), dtype=torch.uint8, device=device)
    distributed.all_reduce(flag, distributed.ReduceOp.MAX)
    return bool(flag)


@torch.no_grad()
def validate(
    model: nn.Module,
    batches: Iterable,
    cfg: Config,
    device: torch.device,
    autocast: AbstractContextManager,
    schedule: Any = None,
) -> dict[str, float]:
    """Mean loss and top-1 accuracy over at most `cfg.val_steps` batches, on all ranks together.

    Args:
        schedule: of a pipeline, whose last stage alone has scores.

    Raises:
        ValueError: no rank had an image.
    """
    model.eval()
    totals = torch.zeros(3, device=device)  # sum of losses, correct, images
    for images, labels in islice(batches, cfg.val_steps):
        images = channels_last(normalised(images.to(device)), cfg.channels_last)
        labels = labels.to(device)
        with autocast:
            scores = schedule.eval(images, target=labels) if schedule else model(images)
        if scores is None:
            continue
        totals[0] += nn.functional.cross_entropy(scores.float(), labels, reduction="sum")
        totals[1] += (scores.argmax(dim=1) == labels).sum()
        totals[2] += len(labels)
    if distributed.is_initialized():
        distributed.all_reduce(totals)
    loss, correct, seen = totals.tolist()
    if not seen:
        raise ValueError("there is no whole batch to validate on: lower batch_size, or val_steps=0")
    return {"val_loss": loss / seen, "val_top1": correct / seen, "val_images": round(seen)}
