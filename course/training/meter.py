"""The meter: the time of each training step, and of each phase within it."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from course.data.loader import set_epoch
from course.runs import failures
from course.runs.files import finite
from course.training import turns
from course.training.attempts import attempt
from course.training.evidence.observers import Observers
from course.training.hooks import Hook
from course.training.progress import Progress
from course.training.recorder import Recorder
from trainspeed import measured_memory as memory
from trainspeed.clocks import clock_for, synchronize
from trainspeed.energy import EnergyMeter, counter
from trainspeed.phases import PHASES

FLUSH_S = 1.0  # between two writes of finished steps
MAX_ROWS = 8192  # of a rank's file, about 2 MB: long runs write every k-th step


@dataclass(frozen=True)
class _Step:
    """A step whose work may still be running on the device."""

    number: int
    epoch: int
    turn: dict[str, int]
    rate: dict[str, float]
    laps: list[str]
    marks: list[Any]  # one more than laps


class Meter:
    """Times the phases of every step and gives them to the run's recorder.

    A step is load, forward, loss, backward, optimizer; `lap` ends each of them. Forward to backward
    are repeated for each micro-batch, and their times are added up. On an accelerator, "load" is
    how long the *device* waited for its batch, including the copy. In a traced run the phases are
    ranges in the trace. Some steps are also observed (`course.training.evidence`).

    Args:
        first: the number of steps that an earlier process of this run has completed. Warm-up starts
            again.
        hooks: besides those of the launch.
    """

    def __init__(
        self, run: Recorder, device: torch.device, first: int = 0, hooks: Sequence[Hook] = ()
    ) -> None:
        if not isinstance(device, torch.device):
            raise ValueError(
                f"device={device!r}: expected a torch.device. current_accelerator() returns None "
                f"if there is no accelerator; use torch.device('cpu') then"
            )
        self.run, self.config, self.device = run, run.config, device
        if not self.config.steps:
            raise ValueError(
                "steps=0: call run.complete_epochs(sets) after image_sets(cfg), because the steps "
                "of a complete epoch must be counted first; or set steps=1 or more"
            )
        self.clock = clock_for(device)
        self.step, self._first, self._epoch = first, first, 0
        self._warmup_end = first + self.config.warmup_steps
        self._marks: list[Any] = []  # of the current step
        self._laps: list[str] = []  # the phases between them
        share = self.config.batch_size // run.world_size
        micro_batch = 0 if self.config.pipeline else self.config.micro_batch
        self._passes = -(-share // (micro_batch or share))  # micro-batches of a step
        self._range: Any = None  # the current phase in the trace
        read = attempt("energy", counter, device)
        self._energy = EnergyMeter(read and partial(attempt, "energy", read))
        self._block: list[float] = []  # seconds of each step since this run's turn began
        self._over = {*range(first // self.config.steps)}  # epochs that need no more steps
        self._running: deque[_Step] = deque()
        self._seconds = array("d")  # of each phase of each step: 8 bytes, for millions of steps
        self._turn: dict[str, int] = {}  # of the last of these steps
        self._measured_s = 0.0  # after warm-up
        # Losses are copied here without waiting, and read after their step has ended.
        total = self.config.epochs * self.config.steps
        self._losses = torch.zeros(total, pin_memory=device.type == "cuda")
        self._row_every = -(-total // MAX_ROWS)
        self._written_at, self._host_gib = time.perf_counter(), 0.0
        run.check_process_group()
        run.steps_missing = self._steps_missing
        run.keep_steps(first)
        self._progress = Progress(run, first)
        if first >= total and run.rank == 0:
            print(f"nothing is left to train: the checkpoint is of step {first}, the last one")
        run.hooks += hooks
        self._observers = Observers(run, device, self.clock, lambda: self.phase, first)
        run.set(**attempt("machine", run.describe, device, default={}))
        memory.limit(device, self.config.memory_gib)
        attempt("peak memory", memory.reset_peak, device)
        self.turns = turns.join(run.rank, run.world_size, run.rank_folder)
        # Several ranks would reach the end of a budget at different steps, and deadlock.
        is_single = run.world_size == 1 and not self.turns
        self._budget_s = self.config.budget_s if is_single else 0.0

    def steps(self, batches: Iterable, epoch: int) -> Iterator:
        """Yield up to `config.steps` batches of this epoch, and time what is done with them."""
        self._epoch, self._marks, self._laps, iterator = epoch, [], [], None
        if self.config.resume:  # the epochs before the first one are of a different run
            self._over = self._over or {*range(epoch)}
        set_epoch(batches, epoch)
        failures.set_worker_timeout(batches)
        self._observers.start_epoch(epoch)
        try:
            completed = max(0, self._first - epoch * self.config.steps)  # by an earlier process
            for count in range(completed, self.config.steps):
                if not self._may_continue():
                    break
                if iterator is None:  # starts the workers, so only in this run's turn
                    iterator = iter(batches)
                batch = next(iterator, None)
                if batch is None:
                    break
                step = self.step
                if step >= self._warmup_end:
                    self._energy.start()
                self._observers.begin_step(step, batches, batch)
                yield batch
                self._observers.stop()
                if self.step != step + 1 or len(self._marks) != 1:
                    missing = ", ".join(PHASES[PHASES.index(self.phase) :])
                    raise RuntimeError(f"step {self.step} ended without meter.lap for {missing}")
                if step == self._first or count + 1 == self.config.steps:
                    host_gib = attempt("host memory", memory.host_gib, default=0.0)
                    self._host_gib = max(self._host_gib, host_gib)
                    self._marks = [self.clock.mark()]  # no step includes this measurement
            self._over.add(epoch)  # unless the script has left the loop
        finally:  # also if the script leaves the loop early
            self._end_epoch(epoch)

    def _steps_missing(self) -> str:
        """Return in which step the script ended; "" if every epoch had its steps."""
        epochs, total = self.config.epochs, self.config.epochs * self.config.steps
        is_complete = self._over.issuperset(range(epochs)) or self.step >= total
        return "" if is_complete else f"in step {self.step} of {total}"

    def _end_epoch(self, epoch: int) -> None:
        self._observers.end_epoch()
        self._enter_range(None)
        self._synchronize()
        peak = attempt("peak memory", memory.peak, self.device, default={})
        self.run.set(**self.summary(), **peak, host_gib=self._host_gib or None)
        self._observers.record()
        if self.run.rank == 0 and self.step > self._first:
            loss = float(self._losses[self.step - 1])
            print(
                f"epoch {epoch + 1} of {self.config.epochs} ends at step {self.step}, "
                f"where the loss is {loss:.3f}",
                flush=True,
            )
        self._observers.begin_validation()

    def _may_continue(self) -> bool:
        """Wait for this run's turn if a block of steps is complete; False ends training."""
        if self.turns and self.turns.is_due:
            self._synchronize()
            self.turns.wait(self._block)
            self._block, self._marks, self._laps = [], [], []
        if 0 < self._budget_s <= self._measured_s or (self.turns and self.turns.is_over):
            return False
        if not self._marks:  # the first step of an epoch or of a turn
            self._marks = [self.clock.mark()]
            self._enter_range("load")
        return True

    @property
    def phase(self) -> str:
        """The current phase; between two steps it is "load"."""
        if not self._laps:
            return PHASES[0]
        last = self._laps[-1]
        if last == "backward" and self._laps.count(last) < self._passes:
            return "forward"
        return PHASES[min(PHASES.index(last) + 1, len(PHASES) - 1)]

    def _enter_range(self, phase: str | None) -> None:
        """End the last phase's range in the trace, and begin the next one."""
        if self._range:
            self._range.__exit__(None, None, None)
        self._range = None
        if phase and self.config.profile_steps:
            self._range = torch.profiler.record_function(phase)
            self._range.__enter__()

    def lap(self, phase: str, loss: torch.Tensor | None = None) -> None:
        """End a phase of the step; the last one, "optimizer", takes the loss of the step.

        Raises:
            RuntimeError: the phases are not in the order of `PHASES`.
        """
        if not self._marks:
            raise RuntimeError(f"meter.lap({phase!r}) came outside a loop over meter.steps(…)")
        self._check_order(phase, loss is not None)
        if phase == "backward":
            self._observers.plant_events(self.step)
        if loss is not None:
            self._losses[self.step].copy_(loss.detach(), non_blocking=True)
        self._marks.append(self.clock.mark())
        self._laps.append(phase)
        self._observers.end_phase(phase, self.step, self._laps.count(phase) == 1)
        self._enter_range(self.phase if loss is None else "load")
        if loss is not None:
            self._end_step()

    def _check_order(self, phase: str, is_last: bool) -> None:
        expected = {self.phase}
        if self._laps[-1:] == ["backward"]:  # a script may use any number of micro-batches
            expected |= {"forward", "optimizer"}
        if self.config.pipeline and self._laps == ["load"]:  # both passes are one
            expected.add("backward")
        if phase not in expected or (phase == PHASES[-1]) != is_last:
            raise RuntimeError(
                f"meter.lap({phase!r}) came where {self.phase!r} was due; the order is "
                f"{', '.join(PHASES)}, the last with loss="
            )

    def _end_step(self) -> None:
        turn = {"turn": self.turns.number} if self.turns else {}
        rate = {} if self._observers.rate is None else {"lr": self._observers.rate}
        self._running.append(_Step(self.step, self._epoch, turn, rate, self._laps, self._marks))
        self._marks, self._laps = self._marks[-1:], []  # the next step begins where this one ends
        self.step += 1
        self._observers.end_step()
        if self.turns:
            self.turns.step()
        if time.perf_counter() - self._written_at > FLUSH_S:
            self._write_finished()

    def _synchronize(self) -> None:
        """Wait for the device, and write all steps."""
        synchronize(self.device)
        self._energy.stop()
        self._write_finished(wait=True)

    def _write_finished(self, *, wait: bool = False) -> None:
        rows = []
        while self._running and (wait or self.clock.is_past(self._running[0].marks[-1])):
            step = self._running.popleft()
            times = dict.fromkeys(PHASES, 0.0)
            for phase, begin, end in zip(step.laps, step.marks, step.marks[1:]):
                times[phase] += self.clock.seconds(begin, end)
            step_s = sum(times.values())
            self._seconds.extend(times.values())
            self._turn = step.turn
            if self.turns:
                self._block.append(step_s)
            self._measured_s += step_s if step.number >= self._warmup_end else 0.0
            if step.number % self._row_every and step.number + 1 < len(self._losses):
                continue
            rows.append(
                {
                    "step": step.number,
                    "epoch": step.epoch,
                    **step.turn,
                    **step.rate,
                    **{f"{phase}_s": seconds for phase, seconds in times.items()},
                    "step_s": step_s,
                    "loss": finite(self._losses[step.number].item()),
                }
            )
        self.run.write_steps(rows)
        self._progress.update(self.step)
        self._written_at = time.perf_counter()

    def summary(self) -> dict[str, Any]:
        """Return medians and quartiles over the steps after warm-up, and first and last loss."""
        warmup = self.config.warmup_steps
        seconds = np.array(self._seconds).reshape(-1, len(PHASES))
        measured = seconds[warmup:]
        losses = self._losses[self._first : self._first + len(seconds)]
        ends = {}
        if len(losses):
            ends = {"first_loss": finite(float(losses[0])), "last_loss": finite(float(losses[-1]))}
        if len(measured) == 0:
            return {"steps_measured": 0} | ends
        speeds = speed_quartiles(measured.sum(axis=1), self.config.batch_size)
        medians = np.median(measured, axis=0)
        return {
            "steps_measured": len(measured),
            **speeds,
            **{f"{phase}_s": float(median) for phase, median in zip(PHASES, medians)},
            **ends,
            "turns": self._turn.get("turn", 0),
            "left": self.turns.left if self.turns else [],
            **self._energy_per_image(speeds["images_per_s"] / self.run.world_size),
        }

    def _energy_per_image(self, images_per_s: float) -> dict[str, float]:
        """Return watts and joules_per_image; rank 0's device represents all of them."""
        watts = self._energy.watts
        return {} if watts is None else {"watts": watts, "joules_per_image": watts / images_per_s}


def speed_quartiles(seconds: np.ndarray, batch: int) -> dict[str, float]:
    """Return medians and quartiles of step times and of images/s, named as in a record."""
    q1, median, q3 = map(float, np.percentile(seconds, [25, 50, 75]))
    return {
        "step_s": median,
        "step_s_q1": q1,
        "step_s_q3": q3,
        "images_per_s": batch / median,
        "images_per_s_q1": batch / q3,
        "images_per_s_q3": batch / q1,
    }
