"""How a run continues in another process: names of its files, and its exit code."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

GO_ON = 75  # exit code of a process that saved after SIGTERM, to be started again: os.EX_TEMPFAIL
CHECKPOINT = "checkpoint"  # the folder of a checkpoint that all ranks write
CHECKPOINTS = "checkpoints"  # the folder of a run's checkpoints
EPOCHS = "epochs.jsonl"  # the results of each epoch, for the next process
INTERRUPTED = "interrupted.json"  # the planned interruptions so far


def interruptions(folder: Path) -> list[dict[str, Any]]:
    """Return the planned interruptions of a run so far, in order: how, and after which step."""
    path = folder / INTERRUPTED
    return json.loads(path.read_text()) if path.exists() else []


def take_over(earlier: Path, folder: Path) -> None:
    """Copy checkpoints and steps from an earlier attempt, so that a new attempt continues.

    Hard links avoid copying the checkpoints on the same disk.
    """
    if not any((earlier / CHECKPOINTS).glob("*")):
        return
    try:
        shutil.copytree(earlier / CHECKPOINTS, folder / CHECKPOINTS, copy_function=os.link)
    except shutil.Error:  # a file system without hard links
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        shutil.copytree(earlier / CHECKPOINTS, folder / CHECKPOINTS)
    for path in [*earlier.glob("steps*.jsonl"), *earlier.glob(EPOCHS)]:
        shutil.copy2(path, folder / path.name)
