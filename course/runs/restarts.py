"""File names and exit code of runs that continue in a new process."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from course.runs.files import link_or_copy
from course.runs.run import Run, steps_file

GO_ON = 75  # exit code of a process that saved after SIGTERM, to be started again: os.EX_TEMPFAIL
CHECKPOINT = "checkpoint"  # the folder of a checkpoint that all ranks write
CHECKPOINTS = "checkpoints"  # the folder of a run's checkpoints
METADATA = ".metadata"  # the file that async_save writes last into a checkpoint's folder
BEST = "best.pt"  # the network after the epoch with the highest accuracy
EPOCHS = "epochs.jsonl"  # the results of each epoch, for the next process
STEPS = "steps*.jsonl"
INTERRUPTED = "interrupted.json"  # the planned interruptions so far


def interruptions(folder: Path) -> list[dict[str, Any]]:
    """Return the planned interruptions of a run so far, in order: how, and after which step."""
    path = folder / INTERRUPTED
    return json.loads(path.read_text()) if path.exists() else []


def has_checkpoints(folder: Path) -> bool:
    """Return whether a run's folder has checkpoints."""
    return any((folder / CHECKPOINTS).glob("[!.]*"))


def take_over(earlier: Path, folder: Path) -> None:
    """Copy checkpoints and steps from an earlier attempt, so that a new attempt continues."""
    if not has_checkpoints(earlier):
        return
    shutil.copytree(earlier / CHECKPOINTS, folder / CHECKPOINTS, copy_function=link_or_copy)
    for path in [file for name in (STEPS, EPOCHS, BEST) for file in earlier.glob(name)]:
        shutil.copy2(path, folder / path.name)
    before, after = Run(earlier), Run(folder)
    if before.gpus != after.gpus:  # each rank gets the complete batches' losses
        lines = [json.dumps(row) + "\n" for row in before.steps.to_dict("records")]
        for path in folder.glob(STEPS):
            path.unlink()
        for rank in range(after.gpus):
            (folder / steps_file(rank)).write_text("".join(lines))


def step_of(path: Path) -> int | None:
    """Return the last number in a checkpoint's name, which is its step."""
    numbers = re.findall(r"\d+", path.stem)
    return int(numbers[-1]) if numbers else None


def remove_unfinished(run: Path) -> None:
    """Delete incomplete checkpoints of a run, which use up space on a full disk.

    These are drafts, whose names begin with a dot, and folders without METADATA.
    """
    for path in [run / CHECKPOINT, *(run / CHECKPOINTS).glob("*")]:
        if path.is_dir() and not (path / METADATA).exists():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith("."):
            path.unlink(missing_ok=True)
