"""Planned interruptions of a run, to test that training continues after them."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch

from course.config import Config
from course.runs.files import write_atomically
from course.runs.restarts import INTERRUPTED, interruptions


class Planted:
    """Causes the interruptions that a run's config requests, each of them once in the run."""

    def __init__(self, folder: Path | None, config: Config) -> None:
        self._folder = folder
        done = [row["how"] for row in interruptions(folder)] if folder else ["SIGTERM", "SIGKILL"]
        self._term_step = 0 if "SIGTERM" in done else config.sigterm_step
        self._kill_step = 0 if "SIGKILL" in done else config.sigkill_step

    def in_step(self, step: int) -> None:
        """Send SIGTERM between backward and the update of this step, counted from 0."""
        if self._term_step and step == self._term_step:
            self._term_step = 0
            self._note("SIGTERM", step)
            os.kill(os.getpid(), signal.SIGTERM)

    def after_step(self, step: int) -> None:
        """After this number of steps, kill the process in the middle of its next torch.save."""
        if not self._kill_step or step != self._kill_step:
            return
        self._kill_step, torch_save = 0, torch.save

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
