"""All observers of a run: they collect the record's evidence while the meter measures time."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from course._compat import is_profiling
from course.runs.evidence import NOT_APPLICABLE, Evidence
from course.training import attempts, profiling
from course.training.attempts import attempt, attempted
from course.training.evidence import group_and_loader
from course.training.evidence.graph_breaks import Graphs
from course.training.evidence.operators import Observer
from course.training.evidence.shards import Held
from course.training.evidence.updates import Updates
from course.training.recorder import Recorder
from trainspeed.clocks import Clock


class Observers:
    """Observes the first and the last warm-up step, the first validation, and updates.

    Args:
        phase: returns the current phase of the step.
        first: the number of steps that an earlier process of this run has completed.
    """

    def __init__(
        self,
        run: Recorder,
        device: torch.device,
        clock: Clock,
        phase: Callable[[], str],
        first: int,
    ) -> None:
        config = run.config
        self.run, self.config, self.device, self._phase = run, config, device, phase
        self._first, self._epoch, self._warmup_end = first, 0, first + config.warmup_steps
        self._described_epoch = -1
        attempts.problems.clear()
        group = attempt("evidence of the group", group_and_loader.group, default=NOT_APPLICABLE)
        self._evidence = Evidence(
            world_size=run.group_size(),
            group=group,
            device=group_and_loader.numbered(device),
            algebra=group_and_loader.algebra(config),
        )
        self._observer: Observer | None = None
        self._observed_part = ""
        self._updates = Updates()
        self._graphs = attempt("evidence of graphs", Graphs) if config.compile else None
        self._held = Held() if config.save_weights and config.shard else None
        run.before_epoch = self._end_validation
        for hook in run.hooks:
            attempt("evidence", hook.begin, device, clock, first)

    @attempted("evidence")
    def start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        for watcher in (self._updates, *self.run.hooks):
            watcher.begin_epoch()

    @attempted("evidence")
    def begin_step(self, step: int, batches: Iterable, batch: Any) -> None:
        self.stop()  # a validation that reported no result
        if step == self._first:
            self._observe("")
        elif step == self._warmup_end - 1 and not profiling.is_traced(step, self.config):
            self._observe("later")
        if self._graphs and step == self._warmup_end:
            self._graphs.end_warmup()
        if self._described_epoch != self._epoch:
            self._describe_loading(batches, batch)

    def plant_events(self, step: int) -> None:
        """Cause what the config plants between backward and update."""
        in_time = 0 < self.config.overflow_step <= step < self._warmup_end and not self._first
        if in_time:
            self._updates.overflow()
        for hook in self.run.hooks:
            hook.before_update()

    @attempted("evidence")
    def end_phase(self, phase: str, step: int, is_first_pass: bool) -> None:
        if phase == "backward" and self._observer:
            self._observer.end_pass()
        if is_profiling() and is_first_pass:
            phases = Counter(self._evidence.traced) + Counter([str(step)])
            self._note(traced=dict(phases))

    def end_step(self) -> None:
        for watcher in (self._updates, *self.run.hooks):
            attempt("evidence", watcher.end_step)

    @property
    def rate(self) -> float | None:
        """The learning rate of the current update, if a schedule changes it and it happened."""
        cfg = self.config
        varies = cfg.schedule or cfg.lr_warmup or cfg.lr_warmup_epochs
        return self._updates.rate if varies else None

    @attempted("evidence")
    def end_epoch(self) -> None:
        for watcher in (self._updates, *self.run.hooks):
            watcher.end_epoch()
        if self._graphs:
            self._graphs.end_epoch()
        self.stop()

    @attempted("evidence")
    def begin_validation(self) -> None:
        """Observe the first validation; without one, saving begins here."""
        if not self.config.val_steps:
            self._watch_saving()
        elif self._epoch == 0 and self.run.rank_folder and not self.run.is_over:
            self._observe("validation")

    @attempted("evidence")
    def _end_validation(self) -> None:
        self.stop()
        self._watch_saving()

    def _watch_saving(self) -> None:
        """After the last epoch, record how much memory a rank needs to save its network."""
        if self._held and self._epoch + 1 == self.config.epochs and self.run.rank_folder:
            self._held.__enter__()
            self.run.before_end = self._end_saving

    @attempted("evidence")
    def _end_saving(self) -> None:
        self.run.before_end = lambda: None
        self._held.__exit__(None, None, None)
        self._note(held_to_save=self._held.most)
        self.record()

    def _observe(self, part: str) -> None:
        """Observe every operator until `stop`, in the first step or another part."""
        # Dynamo cannot compile an observed network, and with fullgraph=True raises an error.
        if self.config.warmup_steps and not self.config.compile:

            def phase() -> str:
                current = self._phase()
                return "load" if part == "later" and current == "load" else part or current

            self._observed_part = part
            self._observer = Observer(phase, self.device.type)
            self._observer.__enter__()

    @attempted("evidence")
    def stop(self) -> None:
        """Stop observing operators."""
        observer, self._observer = self._observer, None
        if observer:
            observer.__exit__(None, None, None)
            operators, part = observer.evidence(), self._observed_part
            self._note(**({part: operators} if part else vars(operators)))
            if part == "validation":  # the rest was recorded when the epoch ended
                self.record()

    def _describe_loading(self, batches: Iterable, batch: Any) -> None:
        """Store how an epoch's batches are loaded, and with which images it began."""
        self._described_epoch = self._epoch
        self._note(loader=group_and_loader.loader(batches), share=len(batch[1]))
        # Not imported: scripts with their own batches should not wait 2 s for ours and torchvision.
        ours = sys.modules.get("course.data.loader")
        if ours and (validation := ours.last_val_loader()):
            self._note(val_taken=getattr(validation.sampler, "taken", NOT_APPLICABLE))  # grows
        sampler = getattr(batches, "sampler", None)
        self._note(taken=getattr(sampler, "taken", []))  # it grows

    def _note(self, **values: Any) -> None:
        self._evidence = replace(self._evidence, **values)

    @attempted("evidence")
    def record(self) -> None:
        """Store the evidence so far in the run's record."""
        if self._graphs:
            self._note(compiled=self._graphs.evidence())
        for hook in self.run.hooks:
            self._note(**hook.evidence())
        evidence = self._updates.add_to(self._evidence)
        # It names a transport once it is used.
        evidence = replace(evidence, nccl=group_and_loader.nccl(self.config))
        self.run.set(evidence=evidence)
