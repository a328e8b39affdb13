"""How far a run is: a file for `course runs`, and a warning if its time limit is too short."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING

from course.runs.files import complete_file
from course.runs.run import PROGRESS
from course.text import clock
from course.training.attempts import attempt

if TYPE_CHECKING:
    from course.training.recorder import Recorder

PERIOD_S = 5.0  # between two writes
SURE_S = 60.0  # of measured steps, before a time limit is judged


class Progress:
    """Rank 0's count of a run's steps, epochs and remaining seconds.

    The remaining time is an extrapolation from the steps of this process after warm-up, with the
    validations in between; before the first validation, it is too short.

    Args:
        first: the steps that earlier processes have completed.
    """

    def __init__(self, recorder: Recorder, first: int) -> None:
        self._recorder, config = recorder, recorder.config
        self._first = first + config.warmup_steps
        self._steps = config.epochs * config.steps
        self._began = self._written_at = 0.0
        # A folder that no launch made, as for another profiler, has no time limit.
        self._must_judge = bool(recorder.run and recorder.run.launched.get("time_min"))

    def update(self, step: int) -> None:
        """Note the number of completed steps; write the file if the last one is old."""
        now = time.monotonic()
        if not self._began and step >= self._first:
            self._first, self._began = step, now
        is_last = step >= self._steps
        if self._recorder.folder is None or (now < self._written_at + PERIOD_S and not is_last):
            return
        self._written_at, left_s = now, None
        if step > self._first and self._began:
            left_s = (now - self._began) / (step - self._first) * (self._steps - step)
        values = self._recorder.values
        progress = {"step": step, "steps": self._steps, "left_s": left_s}
        progress |= {"epochs": len(values["epochs"]), "val_top1": values.get("val_top1")}
        attempt("progress", self._write, json.dumps(progress))
        if self._must_judge and left_s and now > self._began + SURE_S:
            self._must_judge = False
            attempt("time limit", self._judge, left_s)

    def _write(self, text: str) -> None:
        with complete_file(self._recorder.folder / PROGRESS, sync=False) as file:
            file.write(text.encode())

    def _judge(self, left_s: float) -> None:
        run = self._recorder.run
        began = datetime.fromisoformat(run.started["started_at"])
        elapsed_s = (datetime.now() - began).total_seconds()
        limit_s = run.launched["time_min"] * 60
        print(f"about {clock(left_s)} of training are left", flush=True)
        if left_s > limit_s - elapsed_s:
            saves = self._recorder.config.save_every
            fix = "it saves no checkpoint: cancel it, and launch it with a larger time_min"
            if saves:
                fix = "it saves, and is requeued by Slurm; locally, course resume continues it"
            print(f"its job ends {clock(limit_s)} after its start; {fix}", flush=True)
