"""Report what an unmodified script does to a `Recorder`, from hooks in PyTorch.

Public hooks report the steps of optimizers. PyTorch has none for batches and backward passes:
`DataLoader.__iter__` and `torch.autograd.backward` are replaced by functions that also report.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader, get_worker_info

from trainspeed.lines import own_line
from trainspeed.recorder import Iteration, Plan, Recorder, now
from trainspeed.sampler import SampleWorker
from trainspeed.turns import TurnTaker

PLAN = "TRAINSPEED_PLAN"
# After this many backward passes without an optimizer's step, iterations are counted by them; after
# so many batches without either, by batches. If there is an optimizer, it will probably step, after
# it has accumulated gradients or evaluated the model: then only after PATIENCE of them.
BACKWARDS, BATCHES, PATIENCE = 4, 8, 256
OTHERS = 16  # steps of other optimizers in a row, after which the first is no longer in use
UPDATES, PASSES, FETCHES = "optimizer steps", "backward passes", "batches"


class Probe:
    """The hooks of one process. An iteration ends with each step of the first optimizer."""

    def __init__(self, plan: Plan) -> None:
        self.trial = None
        if plan.trial is not None:
            from trainspeed.changes import Trial

            self.trial = Trial(plan.folder, end=self.finish, **plan.trial)
        self.recorder = self._new_recorder(plan)
        self._reference: int | None = None  # the id of the optimizer whose steps count
        self._others = 0  # steps of others since its last one
        self._has_optimizer = False
        self._step_began: dict[int, float] = {}
        self._backwards = self._batches = 0
        self._lines: dict[int, str] = {}  # where loaders and optimizers were constructed

    def install(self) -> None:
        """Install all hooks."""
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        self._patch(DataLoader, "__init__", self._note_line)
        self._patch(torch.optim.Optimizer, "__init__", self._note_line)
        self._patch(
            torch.profiler.profile, "prepare_trace", lambda own: self.recorder.add_profiler(own)
        )
        DataLoader.__iter__ = self._iterate(DataLoader.__iter__)
        torch.autograd.backward = self._backward(torch.autograd.backward)
        if self.trial:
            self.trial.install()
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._forget)

    def _new_recorder(self, plan: Plan) -> Recorder:
        recorder = Recorder(plan)
        if plan.turns:
            report = self.trial.report if self.trial else dict
            taker = TurnTaker(plan.turns, plan.folder, report)

            def take_turn(iteration: Iteration | None) -> None:
                taker.end_iteration(recorder.rule, iteration.samples if iteration else 0)

            recorder.on_iteration = take_turn
        return recorder

    @property
    def is_active(self) -> bool:
        """Whether this process may train: not a DataLoader's worker."""
        return get_worker_info() is None

    def finish(self) -> None:
        """Write what is known at the end of the process."""
        if self.is_active:
            self.recorder.finish()

    def _forget(self) -> None:
        self.recorder = self._new_recorder(self.recorder.plan)
        self._reference, self._backwards, self._batches = None, 0, 0
        self._others = 0

    @staticmethod
    def _patch(owner: Any, name: str, note: Any) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(self, *args, **kwargs):
            note(self)
            return original(self, *args, **kwargs)

        setattr(owner, name, wrapper)

    def _note_line(self, constructed: Any) -> None:
        self._lines[id(constructed)] = own_line()
        self._has_optimizer |= isinstance(constructed, torch.optim.Optimizer)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._step_began[id(optimizer)] = now()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        seconds = now() - self._step_began.get(id(optimizer), now())
        if self._reference is None or self._others >= OTHERS:
            self._reference = id(optimizer)
            self.recorder.count_by(UPDATES)
        self.recorder.add_update(optimizer, seconds, self._lines.get(id(optimizer), ""))
        self._others += 1
        if self._reference == id(optimizer):
            self._others = 0
            self.recorder.mark()

    def _backward(self, original: Any) -> Any:
        @functools.wraps(original)
        def backward(*args, **kwargs):
            if self.trial:
                self.trial.add_loss(args[0] if args else kwargs["tensors"])
            begin = now()
            original(*args, **kwargs)
            self.recorder.add_backward(begin, now())
            self._backwards += 1
            if self._reference is None and self._backwards >= self._after(BACKWARDS):
                self._mark_by(PASSES)

        return backward

    def _mark_by(self, rule: str) -> None:
        if self.recorder.rule != rule:
            self.recorder.count_by(rule)
        self.recorder.mark()

    def _after(self, count: int) -> int:
        return PATIENCE if self._has_optimizer else count

    def _iterate(self, original: Any) -> Any:
        @functools.wraps(original)
        def iterate(loader):
            if not self.is_active:
                return original(loader)
            line = self._lines.get(id(loader), "")
            self.recorder.add_loop(loader, line)
            with self._sampled_workers(loader):
                begin = now()
                iterator = original(loader)
            return Batches(self, loader, iterator, now() - begin)

        return iterate

    @contextlib.contextmanager
    def _sampled_workers(self, loader: Any) -> Iterator[None]:
        """Let the workers that start in this block sample themselves."""
        before = loader.worker_init_fn
        if (
            not self.recorder.plan.turns
            and loader.num_workers
            and not isinstance(before, SampleWorker)
        ):
            loader.worker_init_fn = SampleWorker(before, self.recorder.plan.folder)
        try:
            yield
        finally:
            loader.worker_init_fn = before

    def add_batch(self, loader: Any, begin_s: float, end_s: float, batch: Any) -> None:
        """Report a batch, and end an iteration if nothing else shows where one ends."""
        self._batches += 1
        if self.trial:
            self.trial.add_batch(batch)
        is_alone = not self._backwards and self._reference is None
        if is_alone and self._batches >= self._after(BATCHES):
            self._mark_by(FETCHES)
        self.recorder.add_batch(loader, begin_s, end_s, batch)


class Batches:
    """A DataLoader's iterator that reports how long each batch took; otherwise as the original."""

    def __init__(self, probe: Probe, loader: Any, iterator: Any, start_s: float) -> None:
        self._probe, self._loader, self._iterator = probe, loader, iterator
        self._start_s = start_s  # of the workers, which the first batch waits for

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        begin, self._start_s = now() - self._start_s, 0.0
        with self._probe.recorder.fetching():
            batch = next(self._iterator)
        self._probe.add_batch(self._loader, begin, now(), batch)
        return batch

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def install() -> None:
    """Install the hooks in this process, by the plan in its environment."""
    plan = Plan(**json.loads(os.environ[PLAN]))
    Probe(plan).install()
