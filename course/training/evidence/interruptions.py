"""Interrupt a run where its config plans it, and record this and the run's checkpoints."""

from __future__ import annotations

import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from course.config import Config
from course.runs.evidence import Evidence
from course.runs.files import write_atomically
from course.runs.restarts import CHECKPOINTS, INTERRUPTED, METADATA, interruptions, step_of
from course.training.attempts import attempt

FEW = 16  # steps of a run whose checkpoints are opened: those of long runs may be large


class Interruptions:
    """Causes the interruptions that a run's config plans, each of them once in the run."""

    def __init__(self, folder: Path | None, config: Config, first: int) -> None:
        self._config, self._folder, self._first, self._step = config, folder, first, first
        done = [row["how"] for row in interruptions(folder)] if folder else ["SIGTERM", "SIGKILL"]
        self._term_step = 0 if "SIGTERM" in done else config.sigterm_step
        if self._term_step and distributed.is_initialized():  # a signal reaches the last rank first
            self._term_step += distributed.get_world_size() - 1 - distributed.get_rank()
        self._kill_step = 0 if "SIGKILL" in done else config.sigkill_step
        self._at_start = self._checkpoints()

    def before_update(self) -> None:
        """Send SIGTERM if it is planned between backward and the update of this step."""
        if self._term_step and self._step == self._term_step:
            self._term_step = 0
            self._note("SIGTERM", self._step)
            os.kill(os.getpid(), signal.SIGTERM)

    def end_step(self) -> None:
        """Count a step; if planned, kill the process in the middle of its next torch.save."""
        self._step += 1
        if not self._kill_step or self._step != self._kill_step:
            return
        self._kill_step, torch_save, step = 0, torch.save, self._step

        def save_half(state: Any, file: Any, *args: Any, **options: Any) -> None:
            torch.save = torch_save
            buffer = io.BytesIO()
            torch_save(state, buffer, *args, **options)
            self._note("SIGKILL", step)
            half = buffer.getvalue()[: buffer.tell() // 2]
            if hasattr(file, "write"):
                file.write(half)
                file.flush()
            else:
                Path(file).write_bytes(half)
            os.kill(os.getpid(), signal.SIGKILL)  # as in a power failure: nothing is flushed

        torch.save = save_half

    def _note(self, how: str, step: int) -> None:
        rows = [*interruptions(self._folder), {"how": how, "step": step}]
        write_atomically(self._folder / INTERRUPTED, json.dumps(rows))

    def _checkpoints(self) -> list[dict[str, Any]]:
        place = self._folder / CHECKPOINTS if self._folder else None
        is_small = self._config.deterministic or self._config.epochs * self._config.steps <= FEW
        if not (place and place.exists() and is_small):
            return []
        # A thread may remove old checkpoints meanwhile.
        return attempt("evidence of checkpoints", inspect_checkpoints, place, default=[])

    def add_to(self, evidence: Evidence) -> Evidence:
        """Return the evidence with what was planned so far, and the run's checkpoints."""
        return replace(
            evidence,
            began_at=self._first,
            found=self._at_start,
            left=self._checkpoints(),
            interrupted=interruptions(self._folder) if self._folder else [],
        )


def inspect_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Describe the checkpoints of a folder: name, step, and whether each can be read ("whole")."""
    rows = []
    for path in sorted(folder.rglob("*")):
        # Without its metadata, a folder is still being written in the background.
        is_part = path.parent != folder and (
            (path.parent / METADATA).exists() or path.suffix == ".distcp"
        )
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
