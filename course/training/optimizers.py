"""Optimizers by name, the learning rate's course over a training, and averages of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from course.config import Config
from course.training.models import compiler_kept

Groups = Iterable[torch.Tensor] | Iterable[dict[str, Any]]


def _sgd(weights: Groups, cfg: Config, nesterov: bool = False) -> Optimizer:
    found = torch.optim.SGD(
        weights,
        cfg.lr,
        cfg.momentum,
        weight_decay=cfg.weight_decay,
        nesterov=nesterov,
        fused=cfg.fused or None,
    )
    if cfg.fused:  # or momentum begins as unset memory where the scaler skips the first step
        for weight in (each for group in found.param_groups for each in group["params"]):
            found.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return found


def _of_timm(weights: Groups, cfg: Config, name: str, **own: Any) -> Optimizer:
    with compiler_kept():
        from timm.optim import get_optimizer_class  # only here: importing timm takes two seconds

    kind = get_optimizer_class(name, bind_defaults=False)
    return kind(weights, lr=cfg.lr, weight_decay=cfg.weight_decay, **own)


def _schedulefree(weights: Groups, cfg: Config) -> Optimizer:
    from schedulefree import SGDScheduleFree

    found = SGDScheduleFree(
        weights, cfg.lr, cfg.momentum, cfg.weight_decay, warmup_steps=cfg.lr_warmup
    )
    found.train()  # it refuses to step before it was told
    return found


# Each from its paper: LARS You et al. 2017, arXiv:1708.03888. LAMB You et al. 2020,
# arXiv:1904.00962. Lion Chen et al. 2023, arXiv:2302.06675. Muon Jordan 2024, with AdamW for what
# is no matrix. Schedule-free Defazio et al. 2024, arXiv:2405.15682.
OPTIMIZERS: dict[str, Callable[[Groups, Config], Optimizer]] = {
    "sgd": _sgd,
    "nesterov": lambda weights, cfg: _sgd(weights, cfg, nesterov=True),
    "adamw": lambda weights, cfg: torch.optim.AdamW(
        weights, cfg.lr, weight_decay=cfg.weight_decay, fused=cfg.fused or None
    ),
    "lars": lambda weights, cfg: _of_timm(weights, cfg, "lars", momentum=cfg.momentum),
    "lamb": lambda weights, cfg: _of_timm(weights, cfg, "lamb"),
    "lion": lambda weights, cfg: _of_timm(weights, cfg, "lion"),
    "muon": lambda weights, cfg: _of_timm(weights, cfg, "muon", momentum=0.95, nesterov=True),
    "schedulefree": _schedulefree,
}


def create(weights: Groups, cfg: Config) -> Optimizer:
    """The optimizer that the config names, over weights or groups of them.

    It takes of the config what it knows: `lr` and `weight_decay` all of them, `momentum` sgd,
    nesterov, lars and schedulefree. All else is as its authors have it.
    """
    return OPTIMIZERS[cfg.optimizer](weights, cfg)


class Constant:
    """A learning rate that stays: it has no state."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take."""


def schedule(optimizer: Optimizer, cfg: Config) -> LRScheduler | Constant:
    """Let the learning rate follow the config's course, from one update to the next.

    It grows linearly over `cfg.lr_warmup` updates, and follows `cfg.schedule` from there to the
    end of the last epoch: "" stays, "linear" and "cosine" fall to zero. "one_cycle" has a rise and
    fall of its own (Smith and Topin 2017, arXiv:1708.07120), and momentum falls as it rises.

    It counts updates: a step that a gradient scaler left out is none. "find" is the script's own.

    Returns:
        What a checkpoint is to have of it: nobody else needs to step it.
    """
    course = _course(optimizer, cfg)
    if course is None:
        return Constant()
    optimizer.register_step_post_hook(lambda *_: None if _is_left_out(optimizer) else course.step())
    return course


def _is_left_out(optimizer: Optimizer) -> bool:
    """Did gradients overflow? A fused optimizer is called nevertheless, and its kernel looks."""
    overflow = getattr(optimizer, "found_inf", None)
    return overflow is not None and bool(overflow.item())


def _course(optimizer: Optimizer, cfg: Config) -> LRScheduler | None:
    """What sets the next update's learning rate; None where it stays as it is."""
    updates = cfg.epochs * cfg.steps
    if cfg.schedule == "find":
        return None
    if cfg.schedule == "one_cycle":
        return lr_scheduler.OneCycleLR(optimizer, cfg.lr, total_steps=updates + 1)
    ramp = 0 if cfg.optimizer == "schedulefree" else cfg.lr_warmup  # which has its own
    parts: list[LRScheduler] = []
    if ramp:
        parts += [lr_scheduler.LinearLR(optimizer, 1 / (ramp + 1), 1.0, total_iters=ramp)]
    if cfg.schedule == "linear":
        parts += [lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=updates - ramp)]
    if cfg.schedule == "cosine":
        parts += [lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates - ramp)]
    if len(parts) == 2:
        return lr_scheduler.SequentialLR(optimizer, parts, milestones=[ramp])
    return parts[0] if parts else None


class Averaged:
    """The network to validate: itself, or averages of its weights over the updates.

    With `cfg.ema` these are moving averages, which keep this share of themselves at each update.
    Schedule-free SGD has averages of its own, to which it changes while the network is validated.
    """

    def __init__(self, net: nn.Module, optimizer: Optimizer, cfg: Config) -> None:
        self._net, self._optimizer = net, optimizer
        self._own = hasattr(optimizer, "eval")
        self._average: AveragedModel | None = None
        if cfg.ema:
            mean = get_ema_multi_avg_fn(cfg.ema)
            self._average = AveragedModel(net, multi_avg_fn=mean, use_buffers=True)
            optimizer.register_step_post_hook(lambda *_: self._average.update_parameters(net))

    def _set(self, mode: str) -> None:
        if self._own:
            getattr(self._optimizer, mode)()

    @contextmanager
    def validated(self) -> Iterator[nn.Module]:
        """The network to validate, inside this context."""
        self._set("eval")
        try:
            yield self._average.module if self._average else self._net
        finally:
            self._set("train")
