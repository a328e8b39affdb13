"""A second clock of a race, in its supervisor: no script can change it.

It imports no PyTorch, because a supervisor has none.
"""

from __future__ import annotations

import json
from contextlib import suppress

from course import Run
from course.runs import write_atomically

BEGAN = "race-began"  # created by a racing run when its clock starts
RESULT = "race-clock.json"  # the time that its supervisor measured


class SupervisedClock:
    """Measures how long a run took until its last weights, by the disk's times of change."""

    def __init__(self, run: Run) -> None:
        self._folder, self._began_s = run.folder, None

    def look(self) -> None:
        """Note when the clock started, the first time that the file is there."""
        if self._began_s is None:
            with suppress(FileNotFoundError):
                self._began_s = (self._folder / BEGAN).stat().st_ctime

    def end(self) -> None:
        """Write the time. The process is over, so it cannot change the result."""
        self.look()
        if self._began_s is None:
            return
        seconds = None
        with suppress(FileNotFoundError):
            ended_s = (self._folder / "weights.pt").stat().st_ctime
            seconds = ended_s - self._began_s
            if self._began_s.is_integer() and ended_s.is_integer():
                seconds -= 1  # a disk that counts whole seconds, such as Lustre: it took no less
        # On a full disk this fails, and the referee refuses a run without this time.
        write_atomically(self._folder / RESULT, json.dumps({"seconds": seconds}))
