"""The memory of a training step by part of the network and by kind."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import torch
from torch.autograd.graph import Node, saved_tensors_hooks

from course import Config
from course.training import memory_prediction
from trainspeed import memory

KINDS = ("weights", "gradients", "optimizer state", "weight copies", "batch", "activations")
STEM, HEAD = ("conv1", "bn1", "relu", "maxpool"), ("avgpool", "fc")


def memory_by_part(config: Config) -> pd.DataFrame:
    """Return a step's GiB by part of the network: columns part, kind, gib.

    Parts are the stem, layer1 to layer4 and the head (with the loss). Kinds are `KINDS`: "weight
    copies" are autocast's copies in half precision; "activations" is everything else that autograd
    saves for backward, each storage counted once, in the part that saves it first.

    The sum is not the peak, because gradients are allocated while activations are freed:
    `predict_memory` predicts the peak. Only tensors count; on a CPU, a process also has
    libraries. The step runs on fake tensors, so nothing is computed.

    Raises:
        ValueError: PyTorch rejects the step.
    """
    with memory_prediction.fake_step(config) as step:
        memory.update_once(step.optimizer)  # creates the optimizer's state
        rows = [*_lasting_tensors(step), *_saved_tensors(step)]
        parts = list(dict.fromkeys(_part(name) for name, _ in step.model.named_children()))
    index = pd.MultiIndex.from_product([parts, KINDS], names=["part", "kind"])
    gib = pd.DataFrame(rows, columns=[*index.names, "gib"]).groupby(index.names)["gib"].sum()
    return gib.reindex(index, fill_value=0.0).reset_index()


def _part(child: str) -> str:
    return "stem" if child in STEM else "head" if child in HEAD else child


def _lasting_tensors(step: memory_prediction.FakeStep) -> Iterator[tuple[str, str, float]]:
    """Yield a step's tensors other than the saved ones; a gradient is as large as its weight."""
    yield "stem", "batch", sum(map(_gib, _batch(step).values()))
    for name, child in step.model.named_children():
        part = _part(name)
        for parameter in child.parameters():
            yield part, "weights", _gib(parameter)
            yield part, "gradients", _gib(parameter)
            for value in step.optimizer.state[parameter].values():
                if isinstance(value, torch.Tensor):
                    yield part, "optimizer state", _gib(value)
        for buffer in child.buffers():
            yield part, "weights", _gib(buffer)


def _saved_tensors(step: memory_prediction.FakeStep) -> list[tuple[str, str, float]]:
    """Return what the forward pass saves for backward, as autograd's hooks report it."""
    lasting = (*step.model.parameters(), *step.model.buffers())
    known = {tensor.untyped_storage() for tensor in lasting} | set(_batch(step))
    saved: list[tuple[str, str, float]] = []
    parts = ["stem"]  # the last one is running

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage() not in known:
            known.add(tensor.untyped_storage())
            kind = "weight copies" if _is_weight_copy(tensor.grad_fn) else "activations"
            saved.append((parts[-1], kind, _gib(tensor)))
        return tensor

    for name, child in step.model.named_children():
        child.register_forward_pre_hook(lambda *_, part=_part(name): parts.append(part))
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        step.forward()
    return saved


def _batch(step: memory_prediction.FakeStep) -> dict[torch.UntypedStorage, torch.Tensor]:
    return {tensor.untyped_storage(): tensor for tensor in step.tensors}


def _is_weight_copy(node: Node | None) -> bool:
    """Return whether a tensor is a parameter after nothing but a type change or a transposition."""
    while node is not None and node.name() in ("ToCopyBackward0", "TBackward0"):
        node = node.next_functions[0][0]
    return node is not None and hasattr(node, "variable")  # a leaf, which accumulates gradients


def _gib(tensor: torch.Tensor) -> float:
    return tensor.untyped_storage().nbytes() / 2**30
