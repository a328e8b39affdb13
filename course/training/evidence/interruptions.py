"""Record how a run was interrupted, and which checkpoints and weights it has."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch

from course.config import Config
from course.runs.restarts import CHECKPOINTS, METADATA, interruptions, step_of
from course.training.evidence import shards
from course.training.interruption import Planted

FEW = 16  # steps of a run whose checkpoints are opened: those of long runs may be large
MUCH = 2**28  # bytes of weights: a checksum of more would take seconds


class Moments:
    """Interrupts a run as its config asks, and describes its checkpoints and its weights."""

    def __init__(self, folder: Path | None, config: Config, first: int) -> None:
        self._config, self._folder, self._first, self._step = config, folder, first, first
        self.planted = Planted(folder, config)
        self._at_start = self._checkpoints()

    def end_step(self) -> None:
        """Count a step, and end the process where the config plans it."""
        self._step += 1
        self.planted.after_step(self._step)

    def _checkpoints(self) -> list[dict[str, Any]]:
        place = self._folder / CHECKPOINTS if self._folder else None
        is_small = self._config.deterministic or self._config.epochs * self._config.steps <= FEW
        return inspect_checkpoints(place) if place and place.exists() and is_small else []

    def evidence(self, weights: list[torch.Tensor]) -> dict[str, Any]:
        """Return the evidence for the record.

        began_at: the number of steps that earlier processes completed. found: the checkpoints at
        the start; left: those at the end. interrupted: what was planted so far. at_end: a checksum
        of the weights at the end, equal for two runs only if these are bitwise identical.
        """
        is_small = self._config.deterministic and shards.size(weights) <= MUCH
        return {
            "began_at": self._first,
            "found": self._at_start,
            "left": self._checkpoints(),
            "interrupted": interruptions(self._folder) if self._folder else [],
            "at_end": _checksum(weights) if is_small else None,
        }


def _checksum(tensors: list[torch.Tensor]) -> int:
    checksum = 0
    for tensor in tensors:
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        checksum = zlib.crc32(content.numpy(), checksum)
    return checksum


def inspect_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Describe the checkpoints of a folder: name, step, and whether each can be read ("whole")."""
    rows = []
    for path in sorted(folder.rglob("*")):
        is_part = path.parent != folder and (path.parent / METADATA).exists()
        if is_part or (path.is_dir() and not (path / METADATA).exists()):
            continue
        try:
            if path.is_file():  # a learner's file, with any content
                torch.load(path, map_location="cpu", weights_only=False)
            is_whole = True
        except Exception:
            is_whole = False
        rows.append({"name": path.name, "step": step_of(path), "whole": is_whole})
    return rows
