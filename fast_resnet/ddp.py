"""The mean of all ranks' gradients, in the flat pieces in which they are made.

DDP copies each gradient into a bucket, and gathers, sends and spreads BatchNorm's statistics, 159
small tensors, before each forward pass. A segment's gradients lie in one piece as they are. It is
sent when the segment has gone back, while the one below it computes, and rank 0's piece of
statistics at the end. DDP is left with the last layer; whether ranks share a step at all is its own
decision, as ever (`no_sync`).
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from fast_resnet import _compat

FIRST_RANK = 0  # of a group: whose weights and statistics all have


def ours(model: nn.Module) -> list[str]:
    """The names of parameters and buffers that DDP is to leave to us: all but the last layer's.

    None where the last layer does not train: DDP takes no network of which nothing is its own. None
    where a parameter has a hook, which would not be called.
    """
    if not any(weight.requires_grad for weight in model.fc.parameters()):
        return []
    if _compat.has_tensor_hooks(model.parameters()):
        return []
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    return [each for each in names if not of_last(each)]


def left_by(ddp: DDP) -> bool:
    """Whether DDP left them to us when it was made. If not, it shares all gradients itself."""
    return bool(getattr(ddp, "parameters_to_ignore", None))


def of_last(name: str) -> bool:
    """Whether this parameter is DDP's."""
    return name.startswith("fc.")


class Shared:
    """What DDP would do for a network's other layers, on the ranks of its process group."""

    def __init__(self, model: nn.Module, ddp: DDP) -> None:
        self._group, self._ranks = ddp.process_group, ddp.process_group.size()
        # NCCL divides while it adds; others leave it to us, in one more pass over all gradients.
        by_nccl = f"{model.conv1.weight.device.type}:nccl"
        self._divides = by_nccl in distributed.get_backend_config(self._group)
        self._how = distributed.ReduceOp.AVG if self._divides else distributed.ReduceOp.SUM
        self._model, self._ddp = model, weakref.ref(ddp)
        self._sent: list[tuple] = []
        with torch.no_grad():  # as DDP does: all begin with the same
            for each in (*model.parameters(), *model.buffers()):
                self._from_first(each)

    def is_for(self, ddp: DDP) -> bool:
        """Whether it was made for this DDP, not for an earlier one around the same network."""
        return self._ddp() is ddp

    def begin(self, statistics: torch.Tensor) -> None:
        """A backward pass begins. When it is over, whichever segment was its last, ranks receive.

        Gradients of an earlier pass, which an error broke off, are dropped.
        """
        self._sent.clear()
        _compat.after_backward(partial(self._receive, statistics))

    def send(self, parameters: list[nn.Parameter], flat: torch.Tensor, views: list) -> None:
        """Begin to add up a segment's gradients: views, one a parameter, lie in a flat piece."""
        for parameter, view in zip(parameters, views):
            if parameter.grad is not None:  # of passes before it, shared or not
                view += parameter.grad
                parameter.grad = None
        work = distributed.all_reduce(flat, self._how, group=self._group, async_op=True)
        self._sent.append((work, flat, parameters, views))

    @torch.no_grad()
    def _receive(self, statistics: torch.Tensor) -> None:
        """Give all parameters whose gradients were sent their mean, and all ranks one's statistics.

        On a GPU its stream waits, not the host.
        """
        self._from_first(statistics)
        for work, flat, parameters, views in self._sent:
            work.wait()
            self._divide(flat)
            for parameter, view in zip(parameters, views):
                if parameter.stride() != view.stride():  # the first layer's, of four channels
                    view = torch.empty_like(parameter).copy_(view)
                if parameter.requires_grad:
                    parameter.grad = view
        self._sent.clear()

    def share_later(self, scores: torch.Tensor) -> None:
        """Of a step that autograd makes: when its backward pass is over, one by one."""
        scores.register_hook(lambda _: _compat.after_backward(self._share_one_by_one))

    @torch.no_grad()
    def _share_one_by_one(self) -> None:
        for name, parameter in self._model.named_parameters():
            if not of_last(name) and parameter.grad is not None:
                distributed.all_reduce(parameter.grad, self._how, group=self._group)
                self._divide(parameter.grad)
        for each in self._model.buffers():
            self._from_first(each)

    def _divide(self, summed: torch.Tensor) -> None:
        """Where the backend did not."""
        if not self._divides:
            summed /= self._ranks

    def _from_first(self, tensor: torch.Tensor) -> None:
        distributed.broadcast(tensor, group=self._group, group_src=FIRST_RANK)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """None: a copy of the network is in no group."""
        return
