"""Observe what optimizers do in a run: how often they step, with which settings and weights."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from course.runs.evidence import NOT_APPLICABLE, Bytes, Evidence, NotApplicable, Overflow
from course.training.attempts import attempted
from course.training.evidence import shards


class Updates:
    """Observes what optimizers do in a run: how often they update, and with which settings."""

    def __init__(self) -> None:
        self._optimizers: list[torch.optim.Optimizer] = []
        self._decay: dict[str, list[float]] = {}  # by kind of weight
        self._in_step, self._counts = 0, []
        self.rate: float | None = None  # the learning rate of the current update
        self._overflow: Overflow | NotApplicable = NOT_APPLICABLE
        self._gradients = 0  # bytes of this rank's gradients at the first update
        self._gradient_norm: float | NotApplicable = NOT_APPLICABLE
        self._hook: RemovableHandle | None = None

    def begin_epoch(self) -> None:
        """Observe every optimizer's steps until `end_epoch`."""
        self._hook = register_optimizer_step_pre_hook(self._look)

    def end_epoch(self) -> None:
        """Stop observing."""
        if self._hook:
            self._hook.remove()

    @attempted("evidence")
    def _look(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if any(hasattr(weight, "fake_mode") for weight in _parameters(optimizer)[:1]):
            return  # a step on fake tensors, for a prediction
        self._in_step += 1
        self.rate = float(optimizer.param_groups[0]["lr"])
        if any(known is optimizer for known in self._optimizers):
            return
        for group in optimizer.param_groups:
            for weight in group["params"]:
                decays = self._decay.setdefault("filters" if weight.ndim > 1 else "vectors", [])
                if (decay := group.get("weight_decay", 0.0)) not in decays:
                    decays.append(decay)
        if not self._optimizers:
            gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
            self._gradients = shards.size(gradients)
            if getattr(optimizer, "grad_scale", None) is None:  # otherwise they are still scaled
                parts = [shards.part(gradient) for gradient in gradients]
                self._gradient_norm = float(torch.nn.utils.get_total_norm(parts))
        self._optimizers.append(optimizer)

    def overflow(self) -> None:
        """Make one gradient infinite, once, as if it had overflowed in fp16."""
        weights = [weight for weight in self.parameters() if weight.grad is not None]
        # Not in every step: a scaler may have skipped all steps until now.
        if weights and self._overflow is NOT_APPLICABLE:
            weights[0].grad[(0,) * weights[0].grad.dim()] = math.inf
            self._overflow = Overflow()

    def end_step(self) -> None:
        """Count the updates of the step that has ended, and check if the overflow was skipped."""
        self._counts.append(self._in_step)
        self._in_step, self.rate = 0, None
        if self._overflow == Overflow():
            is_finite = [bool(weight.isfinite().all()) for weight in self.parameters()]
            self._overflow = Overflow(skipped=all(is_finite))

    def parameters(self) -> list[torch.Tensor]:
        """Return the weights that the first optimizer updates; none before the first update."""
        return _parameters(self._optimizers[0]) if self._optimizers else []

    def add_to(self, evidence: Evidence) -> Evidence:
        """Return the evidence with the updates so far, and the weights as they are now."""
        # Add up on the host: a device may be full, and Apple's has no float64.
        parts = [shards.part(weight.detach()) for weight in self.parameters()]
        weights = [float(part.cpu().double().sum()) for part in parts]
        return replace(
            evidence,
            gradient_norm=self._gradient_norm,
            weights_sum=sum(weights) if weights else NOT_APPLICABLE,
            updates={str(count): steps for count, steps in Counter(self._counts).items()},
            spread=shards.spread(self.parameters(), self._bytes()),
            decay=self._decay,
            parameters=sum(weight.numel() for weight in self.parameters()),
            overflow=self._overflow,
        )

    def _bytes(self) -> Bytes:
        """Return this rank's bytes: weights and optimizer now, gradients at the first update."""
        states = self._optimizers[0].state.values() if self._optimizers else []
        held = [value for state in states for value in state.values()]
        return Bytes(shards.size(self.parameters()), self._gradients, shards.size(held))


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]
