"""Anatomy of memory: what holds it during a training step, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.autograd.graph import Node, saved_tensors_hooks

from course.config import GIB, Config
from course.training.memory_prediction import FakeStep, fake_step, tracked

KINDS = ("weights", "gradients", "optimizer state", "weight copies", "batch", "activations")
STEM, HEAD = ("conv1", "bn1", "relu", "maxpool"), ("avgpool", "fc")


@dataclass(frozen=True)
class ForwardPeaks:
    """Peak GiB of a forward pass that keeps what backward needs, and of one that does not."""

    grad_gib: float
    no_grad_gib: float


def anatomy(config: Config) -> pd.DataFrame:
    """What a training step holds, by part of the network: columns part, kind, gib.

    Nothing is computed: the step runs on fake tensors. Parts are the stem, layer1 to layer4
    and the head (with the loss). Kinds are `KINDS`; "weight copies" are autocast's, in half
    precision, and "activations" all that autograd keeps for backward beside weights and batch,
    each storage counted once, where it is kept first. Not all of it is held at one time: a
    gradient comes when activations go, so `memory.predict`, which tells the peak, counts few
    gradients, and adds what backward needs for one layer. Tensors only, on any device: a
    process on a CPU holds its libraries beside them.

    Raises:
        ValueError: a step that PyTorch refuses.
    """
    with fake_step(config) as step:
        step.update_once()  # for the optimizer's state
        table = pd.DataFrame([*_fixed(step), *_kept(step)], columns=["part", "kind", "gib"])
    parts = list(dict.fromkeys(map(_part, dict(step.model.named_children()))))
    sums = table.pivot_table("gib", "part", "kind", "sum", fill_value=0.0)
    return sums.reindex(parts, columns=KINDS, fill_value=0.0).stack().rename("gib").reset_index()


def kept_without_grad(config: Config) -> ForwardPeaks:
    """Peak GiB of the forward pass with and without `torch.no_grad()`; nothing is computed.

    Without gradients each layer's output is freed once the next layer has used it.

    Raises:
        ValueError: a forward pass that PyTorch refuses.
    """
    peaks = []
    for grad in (True, False):
        with fake_step(config) as step, torch.set_grad_enabled(grad), tracked(step) as held:
            step.forward()
        peaks.append(held["Total"])
    return ForwardPeaks(*peaks)


def _part(child: str) -> str:
    return "stem" if child in STEM else "head" if child in HEAD else child


def _fixed(step: FakeStep) -> list[tuple[str, str, float]]:
    """What does not come from the forward pass. Each weight has a gradient of its own size."""
    rows = [("stem", "batch", sum(_gib(tensor) for tensor in _batch(step).values()))]
    for name, child in step.model.named_children():
        for parameter in child.parameters():
            state = step.optimizer.state[parameter].values()
            held = sum(_gib(value) for value in state if isinstance(value, torch.Tensor))
            rows.append((_part(name), "weights", _gib(parameter)))
            rows.append((_part(name), "gradients", _gib(parameter)))
            rows.append((_part(name), "optimizer state", held))
        rows += [(_part(name), "weights", _gib(buffer)) for buffer in child.buffers()]
    return rows


def _kept(step: FakeStep) -> list[tuple[str, str, float]]:
    """What the forward pass adds, seen by the hooks that autograd calls for what it saves."""
    seen = {_storage(tensor) for tensor in (*step.model.parameters(), *step.model.buffers())}
    seen |= set(_batch(step))
    kept: list[tuple[str, str, torch.Tensor]] = []
    current = ["stem"]

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if _storage(tensor) not in seen:
            seen.add(_storage(tensor))
            kind = "weight copies" if _copies_weight(tensor.grad_fn) else "activations"
            kept.append((current[0], kind, tensor))  # held, so that its address stays its own
        return tensor

    for name, child in step.model.named_children():
        child.register_forward_pre_hook(_note(current, _part(name)))
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        step.forward()
    return [(part, kind, _gib(tensor)) for part, kind, tensor in kept]


def _note(current: list[str], part: str) -> Callable[[nn.Module, Any], None]:
    def enter(_module: nn.Module, _inputs: Any) -> None:
        current[0] = part

    return enter


def _batch(step: FakeStep) -> dict[int, torch.Tensor]:
    return {_storage(tensor): tensor for tensor in (step.loaded, step.images, step.labels)}


def _copies_weight(node: Node | None) -> bool:
    """Was this tensor made of a parameter by nothing but a change of type, or a transposition?"""
    while node is not None and node.name() in ("ToCopyBackward0", "TBackward0"):
        node = node.next_functions[0][0]
    return node is not None and hasattr(node, "variable")  # a leaf: where gradients accumulate


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _gib(tensor: torch.Tensor) -> float:
    return tensor.untyped_storage().nbytes() / GIB
