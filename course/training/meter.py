"""Seconds: what each step of training takes, and which part of the step takes it."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from course.runs import failures
from course.runs.files import finite
from course.runs.record import PHASES
from course.training import memory, profiling, turn
from course.training.clocks import clock_for, with_quartiles
from course.training.energy import EnergyMeter, counter
from course.training.evidence import setup
from course.training.evidence.actions import Actions
from course.training.evidence.compiled import Compiled
from course.training.evidence.moments import Moments
from course.training.evidence.operators import Observer
from course.training.evidence.saving import Held
from course.training.evidence.updates import Updates
from course.training.recorder import Recorder

SHOWN = 16  # so many labels of an epoch's first batch are noted
FLUSH_S = 1.0  # how often finished steps are written out


class Meter:
    """Times the phases of every step and hands them to the run's recorder.

    A step is load, forward, loss, backward, optimizer; `lap` closes each. Forward to backward come
    again for each micro-batch, and a phase's seconds are those of all of them. On an accelerator
    "load" is how long the *device* waited for its batch, the copy included. A traced run has its
    phases as ranges in the trace. The first and the last warm-up step and the first validation are
    observed (`course.training.evidence`).

    Args:
        first: so many steps of the run lie behind it already: it goes on. Warm-up begins anew.
    """

    def __init__(self, run: Recorder, device: torch.device, first: int = 0) -> None:
        if not isinstance(device, torch.device):
            raise ValueError(
                f"the device is {device!r}: where there is no accelerator, "
                f"current_accelerator gives None, and torch.device('cpu') must do"
            )
        self.run, self.config, self.device = run, run.config, device
        self.clock = clock_for(device)
        self.step, self._first, self._epoch = first, first, 0
        self._warm = first + self.config.warmup_steps
        self._marks: list[Any] = []  # of the step under way
        self._laps: list[str] = []  # the phases between them
        share = self.config.batch_size // run.world_size
        micro_batch = 0 if self.config.pipeline else self.config.micro_batch
        self._passes = -(-share // (micro_batch or share))  # of a step, but for a pipeline's own
        self._range: Any = None  # the phase under way, as the trace shows it
        self._observer: Observer | None = None
        self._observed = ""
        self._evidence: dict[str, Any] = {"labels": [[]] * (first // self.config.steps)}
        self._energy = EnergyMeter(counter(device))
        folder = run.folder if self.config.profile_steps and device.type == "cpu" else None
        self._onednn = profiling.OneDnnAccount(folder / profiling.ONEDNN_FILE) if folder else None
        self._block = turn.Block()
        self._finished: deque[tuple[int, int, dict[str, int], list[str], list[Any]]] = deque()
        self._seconds: list[list[float]] = []  # one row a step: the phases
        self._blocks: list[dict[str, int]] = []  # and the block that it belongs to
        self._measured_s, self._turns = 0.0, 0  # seconds and turns after warm-up
        # The loss is copied to here without waiting; it is read once the step's end is past.
        total = self.config.epochs * self.config.steps
        self._losses = torch.zeros(total, pin_memory=device.type == "cuda")
        self._written_at, self._host_gib = time.perf_counter(), 0.0
        run.refuse_if_not_distributed()
        run.keep_steps(first)
        own = {"world_size": run.group_size(), "group": setup.group()}
        self._evidence |= {"device": setup.numbered(device)} | own | setup.algebra(self.config)
        self._held = Held() if self.config.save_weights and self.config.shard else None
        threads = torch.get_num_threads() if device.type == "cpu" else 1
        self._watch()
        self._start(run, device)
        self.turn = turn.of_this_process(self.config, run.rank, threads + self.config.workers)

    def _watch(self) -> None:
        self._updates = Updates() if self.config.warmup_steps else None
        asked = self.config.save_every or self.config.deterministic
        self._moments = Moments(self.run.all_folder, self.config, self._first) if asked else None
        self._compiled = Compiled() if self.config.compile else None
        self._actions = Actions(self.clock, self.device) if self.config.pipeline else None
        self._watching = [x for x in (self._updates, self._actions, self._moments) if x]

    def _start(self, run: Recorder, device: torch.device) -> None:
        run.before_epoch = self._end_validation
        run.set(**run.describe(device))
        if self.config.memory_gib:
            memory.limit(device, self.config.memory_gib)
        memory.reset_peak(device)

    def steps(self, batches: Iterable, epoch: int) -> Iterator:
        """At most `config.steps` batches of this epoch, timed."""
        self._epoch, self._marks, self._laps, iterator = epoch, [], [], None
        failures.give_up_in_time(batches)
        for each in self._watching:
            each.start()
        try:
            behind = max(0, self._first - epoch * self.config.steps)  # of an epoch that goes on
            for count in range(behind, self.config.steps):
                if not self._may_go_on():
                    break
                if iterator is None:  # in one's own turn, since it starts the workers
                    iterator = iter(batches)
                batch = next(iterator, None)
                if batch is None:
                    break
                step = self.step
                if step >= self._warm:
                    self._energy.start()
                self._begin(step)
                if self._moments:
                    self._moments.begin(batch, self.device)
                if len(self._evidence["labels"]) <= epoch:
                    self._note(batches, batch)
                yield batch
                self._end()
                if self.step != step + 1 or len(self._marks) != 1:
                    missing = ", ".join(PHASES[PHASES.index(self.phase) :])
                    raise RuntimeError(f"step {self.step} ended without meter.lap for {missing}")
                if step == self._first or count + 1 == self.config.steps:
                    self._host_gib = max(self._host_gib, memory.host_gib())
                    self._marks = [self.clock.mark()]  # the look is no part of the next step
        finally:  # also where the script breaks out of the loop
            self._end_epoch(epoch)

    def _end_epoch(self, epoch: int) -> None:
        for each in self._watching:
            each.stop()
        if self._compiled:
            self._compiled.end_epoch()
        self._end()
        self._enter(None)
        self._settle()
        self._tell()
        self._say(epoch)
        if not self.config.val_steps:
            self._watch_saving()
        if epoch == 0 and self.config.val_steps and self.run.is_kept and not self.run.is_over:
            self._observe("validation")

    def _end_validation(self) -> None:
        """The validation of an epoch is over."""
        self._end()
        self._watch_saving()

    def _watch_saving(self) -> None:
        """From the end of the last epoch on, see what a rank holds to save its network."""
        if self._held and self._epoch + 1 == self.config.epochs and self.run.is_kept:
            self._held.__enter__()
            self.run.before_end = self._end_saving

    def _end_saving(self) -> None:
        self.run.before_end = lambda: None
        self._held.__exit__(None, None, None)
        self._evidence["held_to_save"] = self._held.most
        self._hand_over()

    def _say(self, epoch: int) -> None:
        """A line for the log, from rank 0 alone."""
        if self.run.rank == 0 and self.step > self._first:
            loss = float(self._losses[self.step - 1])
            print(
                f"epoch {epoch + 1} of {self.config.epochs} ends at step {self.step}, "
                f"where the loss is {loss:.3f}",
                flush=True,
            )

    def _may_go_on(self) -> bool:
        """Wait for this run's turn, where a block of steps is over; False: training ends here."""
        if self.turn.is_due():
            self._settle()
            self.turn.wait(self._block)
            self._block, self._marks, self._laps = turn.Block(), [], []
        if self.turn.is_over(self._measured_s):
            return False
        if not self._marks:  # the first step of the epoch, or of a turn
            self._marks = [self.clock.mark()]
            self._enter("load")
        return True

    @property
    def phase(self) -> str:
        """The phase of the step under way; between steps it is "load"."""
        if not self._laps:
            return PHASES[0]
        last = self._laps[-1]
        again = last == "backward" and self._laps.count(last) < self._passes
        return "forward" if again else PHASES[min(PHASES.index(last) + 1, len(PHASES) - 1)]

    def _begin(self, step: int) -> None:
        self._end()  # a validation that told nobody its figures
        if step == self._first:
            self._observe("")
        elif step == self._warm - 1 and not profiling.is_traced(step, self.config):
            self._observe("later")
        if self._compiled and step == self._warm:
            self._compiled.end_warmup()
        if self._onednn and profiling.is_traced(step, self.config):
            self._onednn.start()

    def _observe(self, what: str) -> None:
        """Watch each operator from here to `_end`: of the first step, or of what is named."""
        # Watched, nothing would be compiled; but validation is of the network as it is.
        if self.config.warmup_steps and (what == "validation" or not self.config.compile):
            self._observed = what
            self._observer = Observer(lambda: self._seen_in(what), self.device.type)
            self._observer.__enter__()

    def _seen_in(self, what: str) -> str:
        """The phase of what is observed: while a batch is made ready, that of any step."""
        return "load" if what == "later" and self.phase == "load" else what or self.phase

    def _end(self) -> None:
        if self._onednn:
            self._onednn.stop()
        if self._observer:
            self._observer.__exit__(None, None, None)
            found, self._observer = self._observer.evidence(), None
            self._evidence |= {self._observed: found} if self._observed else found
            if self._observed == "validation":  # which comes after all else was told
                self._hand_over()

    def _note(self, batches: Iterable, batch: Any) -> None:
        """How batches are loaded, and which images an epoch began with: ranks must differ."""
        labels = batch[1]
        self._evidence["loader"] = setup.loader(batches)
        # A script with batches of its own need not import ours, and torchvision: two seconds.
        ours = sys.modules.get("course.data.loader")
        if ours and (validation := ours.made_last()):
            self._evidence["val_loader"] = setup.loader(validation)
            self._evidence["val_taken"] = getattr(validation.sampler, "taken", None)  # grows
        self._evidence["share"] = len(labels)
        sampler = getattr(batches, "sampler", None)
        for name in ("taken", "low"):  # they grow
            self._evidence[name] = getattr(sampler, name, [])
        told = labels.device.type == "cpu" and self.config.data != "synthetic"
        few = labels[:SHOWN].tolist() if told else []
        self._evidence["labels"].append(few)

    def _enter(self, phase: str | None) -> None:
        """Close the trace's range of the last phase, and open the next one's."""
        if self._range:
            self._range.__exit__(None, None, None)
        self._range = None
        if phase and self.config.profile_steps:
            self._range = torch.profiler.record_function(phase)
            self._range.__enter__()

    def lap(self, phase: str, loss: torch.Tensor | None = None) -> None:
        """Close a phase of the step; the last one, "optimizer", takes the step's loss.

        Raises:
            RuntimeError: the phases came in another order than that of `PHASES`.
        """
        if not self._marks:
            raise RuntimeError(f"meter.lap({phase!r}) came outside a loop over meter.steps(…)")
        self._refuse_out_of_order(phase, loss is not None)
        if phase == "backward":
            self._plant()
        if loss is not None:
            self._losses[self.step].copy_(loss.detach(), non_blocking=True)
        self._marks.append(self.clock.mark())
        self._laps.append(phase)
        if phase == "backward" and self._observer:
            self._observer.end_pass()
        if torch.autograd._profiler_enabled() and self._laps.count(phase) == 1:
            traced = self._evidence.setdefault("traced", {})
            traced[str(self.step)] = traced.get(str(self.step), 0) + 1  # phases of the step
        self._enter(self.phase if loss is None else "load")
        if loss is not None:
            told = self._turn() | self._rate()
            self._finished.append((self.step, self._epoch, told, self._laps, self._marks))
            self._marks, self._laps = self._marks[-1:], []  # the next begins where this one ends
            self.step += 1
            for each in self._watching:
                each.end_step()
            self.turn.step()
            if time.perf_counter() - self._written_at > FLUSH_S:
                self._write_finished()

    def _refuse_out_of_order(self, phase: str, is_last: bool) -> None:
        due = {self.phase}
        if self._laps[-1:] == ["backward"]:  # a script may do with one micro-batch, or take more
            due |= {"forward", "optimizer"}
        if self.config.pipeline and self._laps == ["load"]:  # both passes are one, or there is none
            due.add("backward")
        if phase not in due or (phase == PHASES[-1]) != is_last:
            raise RuntimeError(
                f"meter.lap({phase!r}) came where {self.phase!r} was due; the order is "
                f"{', '.join(PHASES)}, the last with loss="
            )

    def _plant(self) -> None:
        """What the config wants to happen between backward and update."""
        in_time = 0 < self.config.overflow_step <= self.step < self._warm and not self._first
        if self._updates and in_time:
            self._updates.overflow()
        if self._moments:
            self._moments.planted.in_step(self.step)

    def _settle(self) -> None:
        """Wait for the device, and write out all that was asked of it."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        self._energy.stop()
        self._write_finished(wait=True)

    def _write_finished(self, *, wait: bool = False) -> None:
        rows = []
        while self._finished and (wait or self.clock.is_past(self._finished[0][-1][-1])):
            step, epoch, turns, laps, marks = self._finished.popleft()
            took = dict.fromkeys(PHASES, 0.0)
            for phase, begin, end in zip(laps, marks, marks[1:]):
                took[phase] += self.clock.seconds(begin, end)
            seconds = [*took.values()]
            self._seconds.append(seconds)
            self._blocks.append(turns)
            self._count(step, turns.get("turn", 0), sum(seconds))
            rows.append(
                {
                    "step": step,
                    "epoch": epoch,
                    **turns,
                    **{f"{phase}_s": value for phase, value in zip(PHASES, seconds)},
                    "step_s": sum(seconds),
                    "loss": finite(self._losses[step].item()),
                }
            )
        self.run.write_steps(rows)
        self._written_at = time.perf_counter()

    def _turn(self) -> dict[str, int]:
        """Of the block that a step belongs to; nothing, where the run takes no turns."""
        number = self.turn.number
        return {} if number is None else {"turn": number, "again": self.turn.again}

    def _rate(self) -> dict[str, float]:
        """The learning rate that the step's update had, where a schedule changes it."""
        varies = self.config.schedule or self.config.lr_warmup
        rate = self._updates.rate if self._updates and varies else None
        return {} if rate is None else {"lr": rate}  # none: the update was left out

    def _counted(self) -> list[bool]:
        """Of each step after warm-up: is its block one that was not repeated afterwards?"""
        blocks = self._blocks[self.config.warmup_steps :]
        last = {each.get("turn"): each.get("again") for each in blocks}
        return [each.get("again") == last[each.get("turn")] for each in blocks]

    def _count(self, step: int, number: int, seconds: float) -> None:
        self._block.seconds += seconds
        self._block.steps += 1
        self._block.last_s = seconds
        if step >= self._warm:
            self._measured_s += seconds
            self._turns = number

    def _tell(self) -> None:
        """Hand the record all that is known by now."""
        taken = memory.peak(self.device) | {"host_gib": self._host_gib or None}
        self.run.set(**self.summary(), **taken)
        self._hand_over()

    def _hand_over(self) -> None:
        seen = self._evidence | (self._updates.evidence() if self._updates else {})
        if self._compiled:
            seen["compiled"] = self._compiled.evidence()
        if self._actions:
            seen["actions"] = self._actions.evidence()
        seen |= self._moments.evidence() if self._moments else {}
        told = self.run.world_size > 1 or self._compiled or "forward_types" in seen
        self.run.set(evidence=seen if told else {})

    def summary(self) -> dict[str, Any]:
        """Medians and quartiles over the steps after warm-up; first and last loss."""
        kept = np.array(self._seconds)[self.config.warmup_steps :][self._counted()]
        done = self._losses[self._first : self._first + len(self._seconds)].tolist()
        ends = {"first_loss": finite(done[0]), "last_loss": finite(done[-1])} if done else {}
        if len(kept) == 0:
            return {"steps_measured": 0} | ends
        speeds = with_quartiles(kept.sum(axis=1), self.config.batch_size)
        return {
            "steps_measured": len(kept),
            **speeds,
            **{f"{phase}_s": float(value) for phase, value in zip(PHASES, np.median(kept, axis=0))},
            **ends,
            "turns": self._turns,
            "left": self.turn.left,
            **self._energy.summary(speeds["images_per_s"] / self.run.world_size),
        }
