"""Run a function that averages gradients on one rank, and observe what it sends and when."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import cloudpickle
import torch
from torch import distributed, nn
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel as DDP

# Bytes, of each step: a new limit begins with a new network; that of the last has twice as many.
LIMITS = (140, 140, 140, 300, 280)
STEPS = len(LIMITS)
MAX_WAITS = 100  # for one message: a loop that waits for the same one again would never end
# Of the network's six weights, by limit and name. The last bucket does not reach the limit.
BUCKETS = {
    140: (("4.bias", "4.weight", "2.bias"), ("2.weight",), ("0.bias", "0.weight")),
    300: (("4.bias", "4.weight", "2.bias", "2.weight"), ("0.bias", "0.weight")),
}
BUCKETS[280] = BUCKETS[140]
BYTES = {140: (140, 256, 96), 300: (396, 96), 280: (280, 512, 192)}
Gradients = dict[str, torch.Tensor | None]  # by the weights' names


@dataclass
class Message:
    """An all-reduce that was started, and when it was waited for."""

    bytes: int
    is_async: bool
    in_backward: bool
    ready: int  # gradients that were ready when it was started
    # For each wait: the step, and whether it was during backward.
    waits: list[tuple[int, bool]] = field(default_factory=list)


@dataclass(eq=False)
class Step:
    """What a step did on one rank."""

    limit: int
    expected: Gradients  # DDP's
    local: Gradients  # this rank's, before averaging
    gradients: Gradients = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # in which gradients became ready
    messages: list[Message] = field(default_factory=list)


class Handle:
    """What an asynchronous all_reduce returns. The sum arrives only when it is waited for.

    So without waiting the gradients are wrong always, and not only sometimes.
    """

    def __init__(self, tensor: torch.Tensor, all_reduce: Callable, note_wait: Callable) -> None:
        self._tensor, self._sum, self._has_arrived = tensor, tensor.detach().clone(), False
        self._work, self._note_wait = all_reduce(self._sum), note_wait

    def _deliver(self, *_: object) -> list[torch.Tensor]:
        if not self._has_arrived:
            self._tensor.detach().copy_(self._sum)
        self._has_arrived = True
        return [self._tensor]

    def wait(self, *timeout: Any) -> bool:
        self._note_wait()
        self._work.wait(*timeout)
        return bool(self._deliver())

    def is_completed(self) -> bool:
        return self._work.is_completed() and bool(self._deliver())

    def get_future(self) -> torch.futures.Future:
        return self._work.get_future().then(self._deliver)


class _Network(nn.Sequential):
    """A network whose gradients are ready in another order than that of its weights.

    In memory, too, a filter's numbers have another order than by their indices.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(2, 8), nn.Tanh(), nn.Conv2d(2, 8, 2), nn.Tanh(), nn.Linear(8, 3))
        super().__init__(*layers)
        self.to(dtype, memory_format=torch.channels_last)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self[1](self[0](inputs))
        last = self[4](hidden)
        return torch.cat([last, self[3](self[2](hidden.view(-1, 2, 2, 2))).flatten(1)], dim=1)


def observe(rank: int, ranks: int, function: bytes) -> list[Step] | str:
    """Run steps of a tiny network with a pickled function; return an error in words."""
    networks = [_Network(torch.float64 if limit == 280 else torch.float32) for limit in LIMITS]
    torch.manual_seed(rank + 1)
    batches = [torch.randn(5, 2).to(next(network.parameters())) for network in networks]
    steps = [
        Step(limit, _gradients(DDP(copy.deepcopy(network)), batch), _gradients(network, batch))
        for limit, network, batch in zip(LIMITS, networks, batches)
    ]
    now, started, in_backward, limit = steps[0], distributed.all_reduce, False, 0

    def note_ready(name: str, _: torch.Tensor) -> None:
        now.order.append(name)

    def all_reduce(tensor, op=distributed.ReduceOp.SUM, group=None, async_op=False):
        message = Message(tensor.nbytes, async_op, in_backward, len(now.order))
        now.messages.append(message)

        def note_wait() -> None:
            message.waits.append((steps.index(now), in_backward))
            if len(message.waits) > MAX_WAITS:
                raise RuntimeError(
                    "the same all-reduce is waited for again and again: remove it from the list"
                )

        handle = Handle(
            tensor,
            lambda values: started(values, op, group, async_op=True),
            note_wait,
        )
        return handle if async_op else handle.wait() and None

    # A name that was imported from torch.distributed is looked up in the second module.
    patches = [mock.patch.object(m, "all_reduce", all_reduce) for m in (distributed, c10d)]
    try:
        with patches[0], patches[1]:
            average_gradients = cloudpickle.loads(function)
            for now, network, batch in zip(steps, networks, batches):
                if now.limit != limit:
                    limit, model = now.limit, copy.deepcopy(network)
                    for name, weight in model.named_parameters():
                        weight.register_post_accumulate_grad_hook(partial(note_ready, name))
                    wait = average_gradients(model.parameters(), limit)
                    if not callable(wait):
                        return f"it returns {type(wait).__name__}, expected a function: `wait`"
                model.zero_grad()
                loss = _loss(model, batch)
                in_backward = True
                loss.backward()
                in_backward = False
                wait()
                now.gradients = _copies(model)
    except Exception as error:  # a learner's function may raise anything
        return _explain(error)
    return steps


def _loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def _gradients(model: nn.Module, batch: torch.Tensor) -> Gradients:
    model.zero_grad()
    _loss(model, batch).backward()
    return _copies(getattr(model, "module", model))  # of DDP, the network inside


def _copies(model: nn.Module) -> Gradients:
    return {name: copy.deepcopy(weight.grad) for name, weight in model.named_parameters()}


def _explain(error: Exception) -> str:
    """Describe an error: where in the learner's functions it was raised, and a likely cause."""
    place, text = "", str(error)
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        is_learners = not code.co_filename.startswith((torch.__path__[0], __file__))
        if is_learners and not code.co_name.startswith("<"):  # a comprehension, for example
            place = f" in line {line - code.co_firstlineno + 1} of `{code.co_name}`"
    hints = {
        "no attribute 'wait'": "all_reduce returns a handle only if async_op=True",
        "NoneType": "is it a gradient that is not ready yet? A hook that is defined in a loop uses "
        "the loop's last bucket, whichever weight calls it",
        "imed out": (order := "does every rank start the same all-reduces, in the same order?"),
        "closed by peer": order,
    }
    hint = next((f". Hint: {hint}" for words, hint in hints.items() if words in text), "")
    return f"it raised {type(error).__name__}{place}: {text}{hint}"
