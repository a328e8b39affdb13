"""The core of DDP: average gradients bucket by bucket while backward still computes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import cloudpickle
import torch
from torch import distributed

from course.runs import runs_root


def make_buckets(weights, limit):
    """Group weights into buckets, the last weight first; close one at `limit` bytes or more."""
    buckets = [[]]
    for weight in reversed(list(weights)):
        buckets[-1].append(weight)
        if sum(weight.nbytes for weight in buckets[-1]) >= limit:
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

    The function is stored in the folder of the runs, with all that it uses of its notebook.

    Args:
        function: written like `average_gradients`.
    """
    content = cloudpickle.dumps(function)
    # A different function has a different file, so the script that reads it is a different run.
    name = f"average-gradients-{hashlib.sha256(content).hexdigest()[:8]}.pickle"
    path = runs_root() / "variants" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {
        "import torch": f"""
            import cloudpickle

            with open({str(path)!r}, "rb") as file:
                average_gradients = cloudpickle.load(file)
            """,
        "criterion = nn.CrossEntropyLoss()": """
            model.require_backward_grad_sync = False  # DDP sends no gradients
            wait = average_gradients(net.parameters(), cfg.bucket_mb * 2**20)""",
        "scaler.scale(loss).backward()": "wait()",
    }
