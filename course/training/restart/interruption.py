"""Interruptions that are planted on purpose, each once in a run, to see that training goes on."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from course.config import Config
from course.runs.files import write_atomically
from course.runs.restarts import INTERRUPTED, interruptions


def end_at_once() -> None:
    """As when the power fails: nothing is finished, nothing flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


class Planted:
    """The interruptions that a run's config asks for. Those that it has had do not come again."""

    def __init__(self, folder: Path | None, config: Config) -> None:
        self._folder, self._config = folder, config
        known = (
            {each["how"] for each in interruptions(folder)} if folder else {"SIGTERM", "SIGKILL"}
        )
        self._term = 0 if "SIGTERM" in known else config.sigterm_step
        self._kill = 0 if "SIGKILL" in known else config.sigkill_step

    def in_step(self, step: int) -> None:
        """Between backward and the optimizer of step `step`, counted from 0."""
        if self._term and step == self._term:
            self._term = 0
            self._note("SIGTERM", step)
            os.kill(os.getpid(), signal.SIGTERM)

    def after_step(self, done: int) -> None:
        """So many steps are done; what is saved next is cut off in the middle."""
        if self._kill and done == self._kill:
            self._kill = 0
            real = torch.save

            def cut_off(state: Any, place: Any, *rest: Any, **options: Any) -> None:
                torch.save = real
                whole = io.BytesIO()
                real(state, whole, *rest, **options)
                self._note("SIGKILL", done)
                _write(place, whole.getvalue()[: whole.tell() // 2])
                end_at_once()

            torch.save = cut_off

    def _note(self, how: str, step: int) -> None:
        rows = [*interruptions(self._folder), {"how": how, "step": step}]
        write_atomically(self._folder / INTERRUPTED, json.dumps(rows))


def _write(place: Any, content: bytes) -> None:
    if hasattr(place, "write"):
        place.write(content)
        place.flush()
    else:
        Path(place).write_bytes(content)


class Saves:
    """Counts, while it is entered, what this process gives to torch.save, and under which names."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._real: Callable[..., Any] = torch.save

    def start(self) -> None:
        """Count from here on."""
        self._real = real = torch.save

        def counted(state: Any, place: Any, *rest: Any, **options: Any) -> None:
            name = getattr(place, "name", "") if hasattr(place, "write") else str(place)
            self.names.append(Path(name).name if isinstance(name, str) else "")
            real(state, place, *rest, **options)

        torch.save = counted

    def stop(self) -> None:
        """Count no more."""
        torch.save = self._real
