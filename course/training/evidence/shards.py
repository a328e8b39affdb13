"""Describe the part of a sharded network that a rank keeps, and when it gathers the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch

from course._compat import TorchDispatchMode, tree_leaves
from course.runs.evidence import Bytes, Operators, Spread
from course.training.attempts import attempt

GATHER, SCATTER = ("allgather", "all_gather"), ("reduce_scatter",)
PLAIN = (torch.Tensor, torch.nn.Parameter)


def part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank keeps: a DTensor's shard, or all of a plain one.

    This sends nothing, so one rank can call it separately. A DTensor is recognised by its method,
    because importing its class would take a second in scripts that have no DTensor.
    """
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def size(tensors: Iterable[Any]) -> int:
    """Return the bytes that this rank keeps of these tensors; anything else counts 0."""
    parts = [part(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in parts)


def spread(weights: Iterable[torch.Tensor], kept: Bytes) -> Spread:
    """Return how the weights are distributed over the ranks."""
    counts, mesh = Counter(), []
    for weight in weights:
        is_spread = part(weight) is not weight
        counts[" × ".join(map(repr, weight.placements)) if is_spread else "whole"] += 1
        if is_spread:
            mesh = [*weight.device_mesh.shape]
    return Spread(dict(counts), mesh, kept)


class Order:
    """Records when a step gathers weights and when it computes: what is gathered ahead of time."""

    def __init__(self) -> None:
        self._gathers: dict[str, list[int]] = {}
        self._computed: dict[str, bool] = {}
        self._gathered_types: Counter[str] = Counter()
        self._reduced_types: Counter[str] = Counter()

    def sent(self, phase: str, name: str, first: Any) -> None:
        """Note a collective of PyTorch's, by its operator's name and its first argument."""
        tensor = first[0] if isinstance(first, list | tuple) and first else first
        of_type = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
        if any(word in name for word in SCATTER):
            self._reduced_types[of_type] += 1
        if any(word in name for word in GATHER):
            self._gathered_types[of_type] += 1
            stretches = self._gathers.setdefault(phase, [])
            if self._computed.get(phase, True):
                stretches.append(0)
            stretches[-1] += 1
            self._computed[phase] = False

    def computed(self, phase: str) -> None:
        """Note a convolution or a matrix product."""
        self._computed[phase] = True

    def add_to(self, operators: Operators) -> Operators:
        """Return the evidence with the all-gathers and their number formats, if there were any."""
        if not self._gathers:
            return operators
        types = {"gathered_types": dict(self._gathered_types)}
        types |= {"reduced_types": dict(self._reduced_types)}
        return replace(operators, gathers=self._gathers, **types)


class Held(TorchDispatchMode):
    """Counts the bytes that were allocated in this context and are in use; `most`: the maximum.

    It measures saving: with shards, a rank needs at most one full weight at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alive: WeakSet[torch.UntypedStorage] = WeakSet()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # let DTensor run the operator on plain tensors
        before = attempt("evidence", _storages, (args, kwargs), default=set())
        output = func(*args, **(kwargs or {}))
        self._alive |= attempt("evidence", _storages, output, default=set()) - before
        self.most = max(self.most, sum(storage.nbytes() for storage in self._alive))
        return output


def _storages(values: Any) -> set[torch.UntypedStorage]:
    return {x.untyped_storage() for x in tree_leaves(values) if type(x) in PLAIN}
