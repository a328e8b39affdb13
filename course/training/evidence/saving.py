"""Measure what a rank allocates to save weights: with shards, at most one full weight at a time."""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PLAIN = (torch.Tensor, torch.nn.Parameter)


class Held(TorchDispatchMode):
    """Counts the bytes that were allocated in this context and are in use; `most`: the maximum."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: WeakSet[torch.UntypedStorage] = WeakSet()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # let DTensor run the operator on plain tensors
        before = [x.untyped_storage() for x in tree_leaves((args, kwargs)) if type(x) in PLAIN]
        output = func(*args, **(kwargs or {}))
        after = [x.untyped_storage() for x in tree_leaves(output) if type(x) in PLAIN]
        self._alive |= {*after} - {*before}
        self.most = max(self.most, sum(storage.nbytes() for storage in self._alive))
        return output
