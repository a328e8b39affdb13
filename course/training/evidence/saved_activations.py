"""Measure the activations that autograd saves for backward, in bytes, on any device."""

from __future__ import annotations

import warnings

import torch
from torch.autograd.graph import saved_tensors_hooks

from course.config import GIB


class Kept:
    """Adds up, while it is entered, what forward passes leave for backward.

    Autograd hands each tensor that it keeps to a pair of hooks. Several may share a storage, which
    counts once; weights, which are there anyway, do not count. What a script itself packs away, by
    checkpointing or to the host, never comes here, and neither does what checkpointing keeps of
    its operators: so it is what stays on the device as usual.
    """

    def __init__(self) -> None:
        self._hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._sizes: dict[int, int] = {}
        self._most = 0

    def __enter__(self) -> Kept:
        # Of what checkpointing keeps by operator PyTorch will tell the hooks some day; it says so.
        warnings.filterwarnings("ignore", message="A saved_tensors_hooks context")
        self._hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() != -1:  # backward itself, which computes it again
            return tensor.detach()
        of = tensor if tensor._base is None else tensor._base
        if not (of.is_leaf and of.requires_grad):
            storage = tensor.untyped_storage()
            self._sizes[storage.data_ptr()] = storage.nbytes()
        # Without its history: with it, an output would keep itself alive for ever.
        return tensor.detach()

    def end_pass(self) -> None:
        """Backward has used up what was kept."""
        self._most = max(self._most, sum(self._sizes.values()))
        self._sizes = {}

    @property
    def gib(self) -> float:
        """The most that any pass left, in GiB."""
        return self._most / GIB
