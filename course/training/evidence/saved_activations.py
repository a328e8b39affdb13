"""Measure the activations that autograd saves for backward, in bytes, on any device."""

from __future__ import annotations

import warnings

import torch
from torch.autograd.graph import saved_tensors_hooks

from course.config import GIB


class Kept:
    """Measures what forward passes in this context save for backward.

    Autograd passes each tensor that it saves to a pair of hooks. Tensors that share a storage count
    once, and weights do not count because they exist anyway. The hooks do not receive what a script
    saves in its own way, by checkpointing or on the host, nor what selective checkpointing stores.
    So the result is what stays on the device as usual.
    """

    def __init__(self) -> None:
        self._hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._sizes: dict[int, int] = {}
        self._most = 0

    def __enter__(self) -> Kept:
        # PyTorch warns that future versions will also pass selective checkpointing's tensors to
        # hooks.
        warnings.filterwarnings("ignore", message="A saved_tensors_hooks context")
        self._hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() != -1:  # recomputation during backward
            return tensor.detach()
        of = tensor if tensor._base is None else tensor._base
        if not (of.is_leaf and of.requires_grad):
            storage = tensor.untyped_storage()
            self._sizes[storage.data_ptr()] = storage.nbytes()
        # Without its history: otherwise, an output would keep itself alive forever.
        return tensor.detach()

    def end_pass(self) -> None:
        """End a pass: backward has used up what was saved."""
        self._most = max(self._most, sum(self._sizes.values()))
        self._sizes = {}

    @property
    def gib(self) -> float:
        """The most that any pass saved, in GiB."""
        return self._most / GIB
