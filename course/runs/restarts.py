"""How a run's process says that it ends before the run does, and another is to go on."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

GO_ON = 75  # the exit code of one that was asked to end, and has saved: os.EX_TEMPFAIL
CHECKPOINT = "checkpoint"  # the folder of a run's, written by all of its ranks
CHECKPOINTS = "checkpoints"  # of a run's folder
EPOCHS = "epochs.jsonl"  # the figures of each epoch, where another process may have to know them
INTERRUPTED = "interrupted.json"  # of a run's folder: what interrupted it on purpose so far


def interruptions(folder: Path) -> list[dict[str, Any]]:
    """What has interrupted a run on purpose, in order: how, and behind how many whole steps."""
    path = folder / INTERRUPTED
    return json.loads(path.read_text()) if path.exists() else []


def take_over(earlier: Path, folder: Path) -> None:
    """Let a run that is started anew go on from what an earlier attempt at it has saved.

    Its checkpoints and the steps before them come along; on one disk they take no room twice.
    """
    if not any((earlier / CHECKPOINTS).glob("*")):
        return
    copy = os.link if hasattr(os, "link") else shutil.copy2
    try:
        shutil.copytree(earlier / CHECKPOINTS, folder / CHECKPOINTS, copy_function=copy)
    except shutil.Error:  # a file system without hard links
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        shutil.copytree(earlier / CHECKPOINTS, folder / CHECKPOINTS)
    for path in [*earlier.glob("steps*.jsonl"), *earlier.glob(EPOCHS)]:
        shutil.copy2(path, folder / path.name)
