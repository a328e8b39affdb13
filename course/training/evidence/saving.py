"""Measure what a rank allocates to save weights: with shards, at most one full weight at a time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PLAIN = (torch.Tensor, torch.nn.Parameter)


class Held(TorchDispatchMode):
    """Counts the bytes that were allocated in this context and are in use; `most`: the maximum."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, int] = {}
        self._now = 0
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # let DTensor run the operator on plain tensors
        before = {_key(tensor) for tensor in tree_leaves((args, kwargs)) if type(tensor) in PLAIN}
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if type(tensor) in PLAIN and _key(tensor) not in before:
                self._note(tensor.untyped_storage())
        return output

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        self._now += storage.nbytes()
        self.most = max(self.most, self._now)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self._now -= self._alive.pop(key, 0)


def _key(tensor: Any) -> int:
    return tensor.untyped_storage()._cdata
