"""The heart of DDP: gradients are averaged bucket by bucket while backward still computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import ModuleType

import torch
from torch import distributed

from course.checks.functions import globals_of, with_helpers


def make_buckets(weights, limit):
    """Group weights into buckets, the last weight first; close one at `limit` bytes or more."""
    buckets = [[]]
    for weight in reversed(list(weights)):
        buckets[-1].append(weight)
        if sum(each.nbytes for each in buckets[-1]) >= limit:
            buckets.append([])
    return [bucket for bucket in buckets if bucket]


def send(bucket):
    """Start the all-reduce of a bucket's gradients; return their tensor, and the handle."""
    gradients = torch.cat([weight.grad.flatten() for weight in bucket])
    return gradients, distributed.all_reduce(gradients, async_op=True)


def receive(bucket, gradients, handle):
    """Wait for an all-reduce, and copy its mean over the ranks into the weights' gradients."""
    ranks = distributed.get_world_size()
    handle.wait()
    gradients /= ranks
    for weight, part in zip(bucket, gradients.split([each.numel() for each in bucket])):
        weight.grad.copy_(part.view_as(weight))


def watch(bucket, under_way):
    """Send a bucket as soon as backward has computed its last gradient."""
    ready = []

    def hook(weight):
        ready.append(weight)
        if len(ready) == len(bucket):
            under_way.append((bucket, *send(bucket)))
            ready.clear()

    for weight in bucket:
        weight.register_post_accumulate_grad_hook(hook)


def average_gradients(weights, limit):
    """Average gradients during backward; return `wait`, to call before the optimizer."""
    under_way = []
    for bucket in make_buckets(weights, limit):
        watch(bucket, under_way)

    def wait():
        while under_way:
            receive(*under_way.pop(0))

    return wait


def script_lines(function: Callable) -> dict[str, str]:
    """Return the lines that let solutions/train.py average gradients by a function, not by DDP.

    Args:
        function: written like `average_gradients`; its helpers are added to the script, too.
    """
    functions = with_helpers(function)
    sources = [inspect.getsource(each).strip() for each in functions]
    return {
        "import torch": "\n\n\n".join(["\n".join(_imports(functions)), *sources]),
        "criterion = nn.CrossEntropyLoss()": f"""
            model.require_backward_grad_sync = False  # DDP sends no gradients
            wait = {function.__name__}(net.parameters(), cfg.bucket_mb * 2**20)""",
        "scaler.scale(loss).backward()": "wait()",
    }


def _imports(functions: Iterable[Callable]) -> list[str]:
    """Return the lines that define other names in functions: modules, imported names, numbers."""
    lines = set()
    for name, value in {k: v for each in functions for k, v in globals_of(each).items()}.items():
        if isinstance(value, ModuleType) and value not in (torch, distributed):
            lines.add(f"import {value.__name__} as {name}")
        elif isinstance(value, int | float):
            lines.add(f"{name} = {value!r}")
        elif hasattr(value, "__qualname__") and value not in functions:
            lines.add(f"from {value.__module__} import {value.__qualname__} as {name}")
    return sorted(lines)
