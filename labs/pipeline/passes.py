"""Record the passes of pipeline stages in a step: kind, stage, micro-batch, time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import wraps
from inspect import unwrap
from typing import Any

import torch

from course.training import Hook
from trainspeed.clocks import Clock

KEPT = 4  # steps that are kept, the last of the run
TRIES = 5
# The kinds of passes, by PyTorch's method.
FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
METHODS = {
    "forward_one_chunk": FORWARD,
    "backward_one_chunk": BACKWARD,
    "backward_weight_one_chunk": WEIGHT,
}


class Passes(Hook):
    """Records the begin and end of every pass of this rank's stages in training.

    Times are converted to the time of day, so that ranks can be compared if they are on one
    machine, or on machines whose clocks agree.
    """

    def begin(self, device: torch.device, clock: Clock, first: int) -> None:
        """Prepare for the first epoch."""
        self._clock, self._device, self._step = clock, device, 0
        self._methods: dict[str, Callable] = {}
        self._actions: list[tuple[tuple, float, Any, Any]] = []  # of the current step
        self._steps: deque[tuple[int, float, Any, list]] = deque(maxlen=KEPT)
        self._origin: tuple[float, Any] = (0.0, None)

    def begin_epoch(self) -> None:
        """Observe the passes of every stage until `end_epoch`."""
        from torch.distributed.pipelining import PipelineStage

        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        self._origin = self._joined()
        for name, kind in METHODS.items():
            # An earlier run that was aborted may not have called `end_epoch`.
            self._methods[name] = unwrap(getattr(PipelineStage, name))
            setattr(PipelineStage, name, self._watched(self._methods[name], kind))

    def _joined(self) -> tuple[float, Any]:
        """Return a time of day and a mark of the clock that were taken at the same moment.

        The process may be interrupted between the two, so take several pairs and return the
        closest.
        """
        pairs = []
        for _ in range(TRIES):
            before, mark = time.time(), self._clock.mark()
            pairs.append((time.time() - before, before, mark))
        _, day_s, mark = min(pairs, key=lambda pair: pair[0])
        return day_s, mark

    def end_epoch(self) -> None:
        """Stop observing."""
        from torch.distributed.pipelining import PipelineStage

        for name, method in self._methods.items():
            setattr(PipelineStage, name, method)
        self._methods = {}

    def _watched(self, method: Callable, kind: str) -> Callable:
        @wraps(method)
        def watched(stage: Any, micro_batch: int, *args: Any, **named: Any) -> Any:
            # Under a CPU limit (`ulimit -t`), Linux updates the process's clock only every few
            # milliseconds, so that short passes would take 0 s. The thread's clock is exact.
            worked_s, begin = time.thread_time(), self._clock.mark()
            result = method(stage, micro_batch, *args, **named)
            end, worked_s = self._clock.mark(), time.thread_time() - worked_s
            only = kind == BACKWARD and not named.get("full_backward", True)
            done = (INPUT if only else kind, stage.stage_index, micro_batch)
            self._actions.append((done, worked_s, begin, end))
            return result

        return watched

    def end_step(self) -> None:
        """Store the passes of the step that has ended."""
        self._steps.append((self._step, *self._origin, self._actions))
        self._step, self._actions = self._step + 1, []

    def evidence(self) -> dict[str, Any]:
        """Return "actions", the passes of the last steps, by step number.

        A pass is [what, stage, micro-batch, begin, end, worked]. what: F (forward), B (backward), I
        (only the gradients of a stage's inputs) or W (only those of its weights). begin, end:
        seconds, as of `time.time()`. worked: CPU seconds of the thread that runs the passes, which
        do not grow if there are more ranks than cores.
        """
        actions = {
            str(step): [
                [*done, *(self._at(day_s, origin, mark) for mark in marks), round(worked_s, 6)]
                for done, worked_s, *marks in actions
            ]
            for step, day_s, origin, actions in self._steps
        }
        return {"actions": actions} if self.recorder.config.pipeline else {}

    def _at(self, day_s: float, origin: Any, mark: Any) -> float:
        return round(day_s + self._clock.seconds(origin, mark), 6)
