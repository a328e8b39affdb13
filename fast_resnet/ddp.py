"""Average gradients over ranks in place of DDP, without copying them into buckets.

A segment's gradients are one contiguous tensor. Its all-reduce starts when the segment's backward
has ended, and runs while the segment below computes. Rank 0's BatchNorm statistics, one tensor
instead of 159, follow at the end. DDP keeps the last layer, and decides as usual whether ranks
synchronise in a step (`no_sync`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from fast_resnet import _compat
from fast_resnet.structure import HEAD

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


class Bucket:
    """Gradients for a hook that replaces the all-reduce: the methods of PyTorch's `GradBucket`."""

    def __init__(
        self, index: int, parameters: list[nn.Parameter], gradients: list[torch.Tensor]
    ) -> None:
        self._index, self._parameters = index, parameters
        self._flat = torch.cat([gradient.flatten() for gradient in gradients])

    def index(self) -> int:
        """Return the bucket's number, at least 2: DDP's own buckets, of the last layer's weight and
        bias, have the numbers 0 and 1."""
        return self._index

    def buffer(self) -> torch.Tensor:
        """Return all gradients as one flat tensor."""
        return self._flat

    def set_buffer(self, flat: torch.Tensor) -> None:
        """Replace what `buffer` and `gradients` return."""
        self._flat = flat

    def gradients(self) -> list[torch.Tensor]:
        """Return contiguous views of the buffer, one per parameter."""
        pieces = self._flat.split([parameter.numel() for parameter in self._parameters])
        return [piece.view(p.shape) for piece, p in zip(pieces, self._parameters)]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters."""
        return self._parameters

    def is_last(self) -> bool:
        """Return False: hooks count steps by the last bucket, and DDP's own is one per step."""
        return False


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
            self._broadcast(model.parameters())
            if ddp.broadcast_buffers:
                self._broadcast(model.buffers())

    def is_for(self, ddp: DDP) -> bool:
        """Return whether this object belongs to `ddp`, and not to an earlier DDP of the network."""
        return self._ddp() is ddp

    def begin(self, statistics: torch.Tensor) -> None:
        """Prepare for a backward pass that is starting: `_receive` runs when it has ended.

        Gradients of an earlier pass that an error interrupted are dropped.
        """
        self._pending.clear()
        _compat.after_backward(partial(self._receive, statistics))

    def send(
        self, number: int, parameters: list[nn.Parameter], flat: torch.Tensor, views: list
    ) -> None:
        """Start to average the gradients of segment `number`: `views` of `flat`."""
        for parameter, view in zip(parameters, views):
            if parameter.grad is not None:  # of earlier passes, averaged or not
                view += parameter.grad
                parameter.grad = None
        has_hook, index = _compat.communication_hook(self._ddp()), HEAD + 1 - number
        wait = self._call_hook(index, parameters, views) if has_hook else self._all_reduce(flat)
        self._pending.append((wait, parameters, views))

    def _all_reduce(self, flat: torch.Tensor) -> Callable[[], None]:
        """Start to average `flat` in place; return a function that waits until it is done."""
        work = distributed.all_reduce(flat, self._operation, group=self._group, async_op=True)

        def wait() -> None:
            work.wait()
            if not self._divides:
                flat.div_(self._ranks)

        return wait

    def _call_hook(
        self, index: int, parameters: list[nn.Parameter], gradients: list[torch.Tensor]
    ) -> Callable[[], None]:
        """Let DDP's hook start to average; return a function that waits, and sets the gradients."""
        function, state = _compat.communication_hook(self._ddp()) or (allreduce_hook, self._group)
        bucket = Bucket(index, parameters, gradients)
        future = function(state, bucket)

        def wait() -> None:
            bucket.set_buffer(future.wait())
            for gradient, result in zip(gradients, bucket.gradients()):
                gradient.copy_(result)

        return wait

    @torch.no_grad()
    def _receive(self, statistics: torch.Tensor) -> None:
        """Set the averaged gradients, and rank 0's statistics on all ranks.

        On a GPU the stream waits, not the host.
        """
        if self._ddp().broadcast_buffers:
            self._broadcast([statistics])
        for wait, parameters, views in self._pending:
            wait()
            for parameter, view in zip(parameters, views):
                # The first layer's has four channels here.
                if parameter.stride() != view.stride():
                    view = torch.empty_like(parameter).copy_(view)
                if parameter.requires_grad:
                    parameter.grad = view
        self._pending.clear()

    def average_later(self, scores: torch.Tensor) -> None:
        """Average when backward has ended, for a step by torchvision's code."""
        scores.register_hook(lambda _: _compat.after_backward(self._average_all))

    @torch.no_grad()
    def _average_all(self) -> None:
        """Average all gradients as one message, and broadcast each buffer."""
        named = self._model.named_parameters()
        ours = [p for name, p in named if not in_last_layer(name) and p.grad is not None]
        if ours:
            self._call_hook(HEAD + 2, ours, [parameter.grad for parameter in ours])()
        if self._ddp().broadcast_buffers:
            self._broadcast(self._model.buffers())

    def _broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            distributed.broadcast(tensor, group=self._group, group_src=FIRST_RANK)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copy of the network belongs to no process group."""
        return
