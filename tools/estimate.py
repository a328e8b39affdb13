"""About how long recording a machine takes, before it is lent: from what others took."""

from __future__ import annotations

import math
from collections.abc import Iterable

from course.checks.lab import Planned
from course.config import Config
from course.runs import recordings

# Beside steps: from one launch to the next on one to four GPUs 5 to 9 s, and more ranks take more.
START_S = 10.0
# On top where nothing is compiled yet. A compiled network is cut where its gradients are sent, so
# several GPUs compile other pieces than one; kernels of the algebra are the same on both.
COLD_S = {"compile": 50.0, "algebra": 20.0}
LIKE = ("nvidia-h200", "nvidia-h100")  # the first that has a rung tells how fast one GPU is


def seconds(planned: Iterable[Planned]) -> list[float]:
    """About how long each run takes, on a machine that has compiled nothing yet.

    NaN where it cannot be told: of other settings than those of the ladder's last rungs.
    """
    speeds, warm, lasts = _speeds(), set(), []
    for config, gpus, _ in planned:
        name = _like(config)
        pieces = name, name == "compile" and gpus > 1
        cold_s = 0.0 if pieces in warm else COLD_S.get(name, 0.0)
        warm.add(pieces)
        images = config.epochs * config.steps * config.batch_size / gpus
        lasts.append(START_S + cold_s + images / speeds.get(name, math.nan))
    return lasts


def _speeds() -> dict[str, float]:
    """Images a second of one GPU in bf16, by rung."""
    found = [recordings.ladders(machine)["GPU"] for machine in reversed(LIKE)]
    return {
        name: record.images_per_s
        for ladder in found
        for (name, precision), record in ladder.items()
        if precision == "bf16"
    }


def _like(config: Config) -> str:
    """The rung that is as fast; empty where the network or its numbers are other ones."""
    alike = (config.model, config.image_px, config.channels_last)
    if alike != ("resnet50", 224, True) or config.precision not in ("half", "bf16"):
        return ""
    if config.device == "cpu" or config.sync_batchnorm:
        return ""
    if config.data != "synthetic" and config.format != "gpu_decode":  # processors set the pace
        return ""
    return "algebra" if config.algebra else "compile" if config.compile else "channels_last"
