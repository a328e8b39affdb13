"""Optimizers by name, learning-rate schedules, and averages of the weights."""

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
from course.training.models import keep_compiler_limit

SETTINGS = ("lr", "momentum", "weight_decay", "nesterov", "fused")  # of a group, from the config
Groups = Iterable[torch.Tensor] | Iterable[dict[str, Any]]


def peak_lr(cfg: Config) -> float:
    """Return the learning rate for the config's batch: `lr`, scaled linearly from `lr_batch`.

    Source: Goyal et al. 2017, arXiv:1706.02677.
    """
    return cfg.lr * (cfg.batch_size / cfg.lr_batch if cfg.lr_batch else 1)


def _sgd(weights: Groups, cfg: Config, nesterov: bool = False) -> Optimizer:
    optimizer = torch.optim.SGD(
        weights,
        peak_lr(cfg),
        cfg.momentum,
        weight_decay=cfg.weight_decay,
        nesterov=nesterov,
        fused=cfg.fused or None,
    )
    if cfg.fused:  # PyTorch leaves the momentum unset if the scaler skips the first step
        for group in optimizer.param_groups:
            for weight in group["params"]:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


def _timm(weights: Groups, cfg: Config, name: str, **options: Any) -> Optimizer:
    with keep_compiler_limit():
        from timm.optim import get_optimizer_class  # only here: importing timm takes two seconds

    kind = get_optimizer_class(name, bind_defaults=False)
    return kind(weights, lr=peak_lr(cfg), weight_decay=cfg.weight_decay, **options)


def _schedulefree(weights: Groups, cfg: Config) -> Optimizer:
    from schedulefree import SGDScheduleFree

    optimizer = SGDScheduleFree(
        weights, peak_lr(cfg), cfg.momentum, cfg.weight_decay, warmup_steps=cfg.lr_warmup
    )
    optimizer.train()  # it requires this call before the first step
    return optimizer


# Sources: LARS You et al. 2017, arXiv:1708.03888. LAMB You et al. 2020, arXiv:1904.00962. Lion Chen
# et al. 2023, arXiv:2302.06675. Muon Jordan 2024, with AdamW for everything that is not a matrix.
# Schedule-free Defazio et al. 2024, arXiv:2405.15682.
OPTIMIZERS: dict[str, Callable[[Groups, Config], Optimizer]] = {
    "sgd": _sgd,
    "nesterov": lambda weights, cfg: _sgd(weights, cfg, nesterov=True),
    "adamw": lambda weights, cfg: torch.optim.AdamW(
        weights, peak_lr(cfg), weight_decay=cfg.weight_decay, fused=cfg.fused or None
    ),
    "lars": lambda weights, cfg: _timm(weights, cfg, "lars", momentum=cfg.momentum),
    "lamb": lambda weights, cfg: _timm(weights, cfg, "lamb"),
    "lion": lambda weights, cfg: _timm(weights, cfg, "lion"),
    "muon": lambda weights, cfg: _timm(weights, cfg, "muon", momentum=0.95, nesterov=True),
    "schedulefree": _schedulefree,
}


def create(weights: Groups, cfg: Config) -> Optimizer:
    """Create the optimizer that the config names, for weights or groups of them.

    All use `peak_lr` and the config's `weight_decay`; sgd, nesterov, lars and schedulefree its
    `momentum`. Other settings are the authors' defaults.
    """
    optimizer = OPTIMIZERS[cfg.optimizer](weights, cfg)
    optimizer.register_load_state_dict_pre_hook(keep_settings)
    return optimizer


def keep_settings(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Keep the config's settings when a checkpoint is loaded, which PyTorch would replace.

    Those that a schedule changes continue from the checkpoint.

    Raises:
        ValueError: the checkpoint's schedule began with a different learning rate.
    """
    groups, changes = [], {}
    for own, saved in zip(optimizer.param_groups, state["param_groups"]):
        own_lr, saved_lr = (group.get("initial_lr") for group in (own, saved))
        if own_lr != saved_lr:
            raise ValueError(
                f"this config's schedule begins with lr={own_lr}, and the checkpoint's began with "
                f"{saved_lr}: continue with the same lr and schedule, or launch a new training"
            )
        scheduled = ("lr",) * ("initial_lr" in own) + ("momentum",) * ("max_momentum" in own)
        names = [name for name in SETTINGS if name in own and name not in scheduled]
        new = {name: own[name] for name in names if own[name] != saved.get(name)}
        changes |= {name: (value, saved.get(name)) for name, value in new.items()}
        groups.append(saved | new)
    for name, (value, old) in changes.items():
        print(f"continues with this config's {name}={value}, not the checkpoint's {old}")
    return state | {"param_groups": groups + state["param_groups"][len(groups) :]}


def clip_norm(network: nn.Module, limit: float) -> torch.Tensor:
    """Scale all gradients of a network so that their norm is at most `limit`; return their norm.

    It is PyTorch's `clip_grad_norm_` for weights on several meshes, whose norms it cannot combine:
    those that ranks share as parts of layers, and those that they only shard.
    """
    meshes: dict[Any, list[nn.Parameter]] = {}
    for weight in network.parameters():
        if weight.grad is not None:
            meshes.setdefault(getattr(weight, "device_mesh", None), []).append(weight)
    norms = [nn.utils.get_total_norm([w.grad for w in weights]) for weights in meshes.values()]
    parts = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(parts))
    for weights in meshes.values():
        nn.utils.clip_grads_with_norm_(weights, limit, total)
    return total


class Constant:
    """A constant learning rate, which has no state to save."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def schedule(optimizer: Optimizer, cfg: Config) -> LRScheduler | Constant:
    """Change the learning rate after each update, as the config says.

    It grows linearly over `cfg.lr_warmup` updates or `cfg.lr_warmup_epochs`, and then follows
    `cfg.schedule` to the end of the last epoch: "" stays constant, "linear" and "cosine" fall to
    zero, "step" is multiplied by `cfg.lr_gamma` after every `cfg.lr_step_size` epochs, each time
    between two epochs as torchvision's reference does. "one_cycle" rises and
    falls, and momentum falls while it rises (Smith and Topin 2017, arXiv:1708.07120). The script
    itself implements "find". Steps that a gradient scaler skips do not count.

    Returns:
        The scheduler, for checkpoints. Do not call its step().
    """
    scheduler = _scheduler(optimizer, cfg)
    if scheduler is None:
        return Constant()

    def step(*_: Any) -> None:
        # The hook of a fused optimizer also runs when its kernel skips an overflowed step.
        overflow = getattr(optimizer, "found_inf", None)
        if overflow is None or not overflow.item():
            scheduler.step()

    optimizer.register_step_post_hook(step)
    return scheduler


def _scheduler(optimizer: Optimizer, cfg: Config) -> LRScheduler | None:
    updates = cfg.epochs * cfg.steps
    if cfg.schedule == "find":
        return None
    if cfg.schedule == "one_cycle":
        return lr_scheduler.OneCycleLR(optimizer, peak_lr(cfg), total_steps=updates + 1)
    warmup = cfg.lr_warmup_epochs * cfg.steps or cfg.lr_warmup
    if cfg.optimizer == "schedulefree":  # it has its own warm-up
        warmup = 0
    parts: list[LRScheduler] = []
    if warmup:
        parts += [lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), 1.0, total_iters=warmup)]
    if cfg.schedule == "linear":
        parts += [lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=updates - warmup)]
    if cfg.schedule == "cosine":
        parts += [lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates - warmup)]
    if cfg.schedule == "step":
        parts += [lr_scheduler.StepLR(optimizer, cfg.lr_step_size * cfg.steps, cfg.lr_gamma)]
    if len(parts) == 2:
        return lr_scheduler.SequentialLR(optimizer, parts, milestones=[warmup])
    return parts[0] if parts else None


class Averaged:
    """The network to validate: the network itself, or averages of its weights over the updates.

    With `cfg.ema` these are moving averages that keep this share of themselves at each update.
    Schedule-free SGD switches to its own averages while the network is validated.
    """

    def __init__(self, net: nn.Module, optimizer: Optimizer, cfg: Config) -> None:
        self._net, self._optimizer, self._average = net, optimizer, None
        if cfg.ema:
            mean = get_ema_multi_avg_fn(cfg.ema)
            average = AveragedModel(net, multi_avg_fn=mean, use_buffers=True)
            optimizer.register_step_post_hook(lambda *_: average.update_parameters(net))
            self._net, self._average = average.module, average

    def state_dict(self) -> dict[str, Any]:
        """Return the moving averages, for checkpoints; {} without any."""
        return self._average.state_dict() if self._average else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if self._average:
            self._average.load_state_dict(state)

    def buffers(self) -> Iterator[torch.Tensor]:
        """Yield the averages that are no weights."""
        yield from self._average.buffers() if self._average else ()

    @contextmanager
    def validated(self) -> Iterator[nn.Module]:
        """Provide the network to validate."""
        has_averages = hasattr(self._optimizer, "eval")
        if has_averages:
            self._optimizer.eval()
        try:
            yield self._net
        finally:
            if has_averages:
                self._optimizer.train()
