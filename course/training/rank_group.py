"""Join the process group and validate together, as all ranks of Day 4's scripts do."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from course.data.loader import normalised
from course.training.precision import channels_last, default_device

if TYPE_CHECKING:
    from course.config import Config
    from course.training.recorder import Recorder


def join_group(run: Recorder) -> torch.device:
    """Return this rank's device; several ranks join a process group, as in `process_group`."""
    device = default_device(run.config)
    if run.world_size > 1:
        if device.type != "cpu":
            device = torch.device(device.type, run.local_rank)
            torch.accelerator.set_device_index(run.local_rank)
        timeout = timedelta(seconds=run.config.collective_timeout_s)
        distributed.init_process_group(timeout=timeout)
    return device


def any_rank(value: Any, device: torch.device) -> bool:
    """Return whether the value is true on any rank. All ranks must call it."""
    if not distributed.is_initialized():
        return bool(value)
    flag = torch.tensor(bool(value), dtype=torch.uint8, device=device)
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
    """Compute the mean loss and accuracies over up to `cfg.val_steps` batches, on all ranks.

    Args:
        schedule: a pipeline's schedule; only the last stage has scores.

    Raises:
        ValueError: no rank had an image.
    """
    model.eval()
    totals = torch.zeros(4, device=device)  # sum of losses, top-1 and top-5 hits, images
    for images, labels in islice(batches, cfg.val_steps):
        images = channels_last(normalised(images.to(device)), cfg.channels_last)
        labels = labels.to(device)
        with autocast:
            scores = schedule.eval(images, target=labels) if schedule else model(images)
        if scores is None:
            continue
        totals[0] += nn.functional.cross_entropy(scores.float(), labels, reduction="sum")
        totals[1] += (scores.argmax(dim=1) == labels).sum()
        totals[2] += (scores.topk(min(5, scores.shape[1])).indices == labels[:, None]).sum()
        totals[3] += len(labels)
    if distributed.is_initialized():
        distributed.all_reduce(totals)
    loss, top1, top5, images = totals.tolist()
    if not images:
        raise ValueError("no complete batch to validate on: lower batch_size, or set val_steps=0")
    means = {"val_loss": loss / images, "val_top1": top1 / images, "val_top5": top5 / images}
    return means | {"val_images": round(images)}
