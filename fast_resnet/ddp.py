"""Average gradients over ranks in place of DDP, without copying them into buckets.

A segment's gradients are one contiguous tensor. Its all-reduce starts when the segment's backward
has ended, and runs while the segment below computes. Rank 0's BatchNorm statistics, one tensor
instead of 159, follow at the end. DDP keeps the last layer, and decides as usual whether ranks
synchronise in a step (`no_sync`).
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from fast_resnet import _compat

FIRST_RANK = 0  # of a group: all ranks get its weights and statistics


def names_without_ddp(model: nn.Module) -> list[str]:
    """Return the names of parameters and buffers that DDP must ignore: all but the last layer's.

    Empty if the last layer is frozen, because DDP needs a trainable parameter, or if a parameter
    has a hook, which would not be called.
    """
    if not any(weight.requires_grad for weight in model.fc.parameters()):
        return []
    if _compat.has_tensor_hooks(model.parameters()):
        return []
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    return [name for name in names if not in_last_layer(name)]


def ignores_parameters(ddp: DDP) -> bool:
    """Return whether DDP ignores our parameters. If not, it averages all gradients itself."""
    return bool(getattr(ddp, "parameters_to_ignore", None))


def in_last_layer(name: str) -> bool:
    """Return whether a parameter belongs to the last layer, which DDP handles."""
    return name.startswith("fc.")


class GradientAverage:
    """Replaces DDP for all layers but the last, on the ranks of its process group."""

    def __init__(self, model: nn.Module, ddp: DDP) -> None:
        self._group, self._ranks = ddp.process_group, ddp.process_group.size()
        # NCCL can average; other backends can only add, and dividing costs one more pass.
        by_nccl = f"{model.conv1.weight.device.type}:nccl"
        self._divides = by_nccl in distributed.get_backend_config(self._group)
        self._operation = distributed.ReduceOp.AVG if self._divides else distributed.ReduceOp.SUM
        self._model, self._ddp = model, weakref.ref(ddp)
        self._pending: list[tuple] = []
        with torch.no_grad():  # as DDP does: all ranks start with the same values
            for tensor in (*model.parameters(), *model.buffers()):
                self._broadcast(tensor)

    def is_for(self, ddp: DDP) -> bool:
        """Return whether this object belongs to `ddp`, and not to an earlier DDP of the network."""
        return self._ddp() is ddp

    def begin(self, statistics: torch.Tensor) -> None:
        """Prepare for a backward pass that is starting: `_receive` runs when it has ended.

        Gradients of an earlier pass that an error interrupted are dropped.
        """
        self._pending.clear()
        _compat.after_backward(partial(self._receive, statistics))

    def send(self, parameters: list[nn.Parameter], flat: torch.Tensor, views: list) -> None:
        """Start the all-reduce of a segment's gradients: `views` of `flat`, one per parameter."""
        for parameter, view in zip(parameters, views):
            if parameter.grad is not None:  # of earlier passes, averaged or not
                view += parameter.grad
                parameter.grad = None
        work = distributed.all_reduce(flat, self._operation, group=self._group, async_op=True)
        self._pending.append((work, flat, parameters, views))

    @torch.no_grad()
    def _receive(self, statistics: torch.Tensor) -> None:
        """Set the averaged gradients, and rank 0's statistics on all ranks.

        On a GPU the stream waits, not the host.
        """
        self._broadcast(statistics)
        for work, flat, parameters, views in self._pending:
            work.wait()
            self._divide(flat)
            for parameter, view in zip(parameters, views):
                if (
                    parameter.stride() != view.stride()
                ):  # the first layer's, which has four channels here
                    view = torch.empty_like(parameter).copy_(view)
                if parameter.requires_grad:
                    parameter.grad = view
        self._pending.clear()

    def average_later(self, scores: torch.Tensor) -> None:
        """Average when backward has ended, for a step by torchvision's code."""
        scores.register_hook(lambda _: _compat.after_backward(self._average_one_by_one))

    @torch.no_grad()
    def _average_one_by_one(self) -> None:
        """Average each gradient and broadcast each buffer."""
        for name, parameter in self._model.named_parameters():
            if not in_last_layer(name) and parameter.grad is not None:
                distributed.all_reduce(parameter.grad, self._operation, group=self._group)
                self._divide(parameter.grad)
        for buffer in self._model.buffers():
            self._broadcast(buffer)

    def _divide(self, summed: torch.Tensor) -> None:
        """Divide a sum by the number of ranks, unless the backend has averaged already."""
        if not self._divides:
            summed /= self._ranks

    def _broadcast(self, tensor: torch.Tensor) -> None:
        distributed.broadcast(tensor, group=self._group, group_src=FIRST_RANK)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copy of the network belongs to no process group."""
        return
