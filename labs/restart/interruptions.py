"""Interrupt a run where its config plans it, and record this and the run's checkpoints."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from course.runs import restarts, write_atomically
from course.training import Hook, attempt

FEW = 16  # steps of a run whose checkpoints are opened: those of long runs may be large


class Interruptions(Hook):
    """Causes the interruptions that a run's config plans, each of them once in the run."""

    _term_step = _kill_step = 0

    def begin(self, device: torch.device, clock: Any, first: int) -> None:
        """Note what an earlier process of this run has left, and what is still planned."""
        config, self._folder = self.recorder.config, self.recorder.rank_folder
        self._first = self._step = first
        done = [row["how"] for row in self._so_far()] if self._folder else ["SIGTERM", "SIGKILL"]
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
        rows = [*self._so_far(), {"how": how, "step": step}]
        write_atomically(self._folder / restarts.INTERRUPTED, json.dumps(rows))

    def _so_far(self) -> list[dict[str, Any]]:
        return restarts.interruptions(self._folder) if self._folder else []

    def _checkpoints(self) -> list[dict[str, Any]]:
        config, place = self.recorder.config, self._folder and self._folder / restarts.CHECKPOINTS
        is_small = config.deterministic or config.epochs * config.steps <= FEW
        if not (place and place.exists() and is_small):
            return []
        # A thread may remove old checkpoints meanwhile.
        return attempt("evidence of checkpoints", inspect_checkpoints, place, default=[])

    def evidence(self) -> dict[str, Any]:
        """Return what was planned so far, and the run's checkpoints."""
        config = self.recorder.config
        if not (config.save_every or config.deterministic):
            return {}
        return {
            "began_at": self._first,
            "found": self._at_start,
            "left": self._checkpoints(),
            "interrupted": self._so_far(),
        }


def inspect_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Describe the checkpoints of a folder: name, step, and state: complete or unreadable."""
    rows = []
    for path in sorted(folder.rglob("*")):
        # Without its metadata, a folder is still being written in the background.
        is_part = path.parent != folder and (
            (path.parent / restarts.METADATA).exists() or path.suffix == ".distcp"
        )
        if is_part or (path.is_dir() and not (path / restarts.METADATA).exists()):
            continue
        try:
            if path.is_file():  # a learner's file, with any content
                torch.load(path, map_location="cpu", weights_only=False)
            state = "complete"
        except Exception:
            state = "unreadable"
        rows.append({"name": path.name, "step": restarts.step_of(path), "state": state})
    return rows
