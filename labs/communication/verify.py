"""Check the lab's function on three processes: its gradients next to DDP's, and what it sends."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import cloudpickle
import torch

from course.analysis import on_ranks
from labs.communication.observe import BUCKETS, BYTES, STEPS, Step, observe

RANKS = 3
HOOK = "in the hook that `register_post_accumulate_grad_hook` registers"


def check_gradients(function: Callable) -> str:
    """Check that the gradients of all steps are DDP's, up to rounding."""
    for rank, steps in enumerate(_observe(function)):
        for number, step in enumerate(steps, 1):
            for name in step.expected:
                problem = _gradient_problem(step, name)
                assert not problem, f"rank {rank}, step {number}: {problem}"
    return f"{RANKS} ranks and {STEPS} steps: gradients are DDP's, up to rounding"


def _gradient_problem(step: Step, name: str) -> str:
    """Describe how a weight's gradient differs from DDP's; "" if it does not."""
    count = len(BUCKETS[step.limit])
    gradient, expected, sent = step.gradients[name], step.expected[name], len(step.messages)
    if gradient is None or gradient.shape != expected.shape:
        shape = "None" if gradient is None else f"of shape {tuple(gradient.shape)}"
        return f"the gradient of {name} is {shape}, expected shape {tuple(expected.shape)}"
    if _is_near(gradient, expected):
        return ""
    if _is_near(gradient, RANKS * expected):
        return "gradients are the sum over the ranks, expected the mean: divide by their number"
    if _is_near(gradient, expected / RANKS):
        return f"gradients are 1/{RANKS} of DDP's: divide by the number of ranks only once"
    factor = float((gradient * expected).sum() / expected.square().sum())
    if factor > 0 and _is_near(gradient, factor * expected):
        return (
            f"gradients are {factor:.3g} times DDP's: divide the sum over the {RANKS} ranks by "
            f"`distributed.get_world_size()`"
        )
    if not sent:
        return (
            f"no all-reduce was started, expected {count}: start one {HOOK} when the bucket "
            f"is complete, and make the bucket ready for the next step"
        )
    if not _is_near(gradient, step.local[name]):
        return (
            f"the gradient of {name} begins with {gradient.flatten()[0]:.3g}, expected "
            f"{expected.flatten()[0]:.3g}: is the all-reduce waited for before its result is used? "
            f"Does each weight get its own part of the message?"
        )
    if sent < count:
        return (
            f"the gradient of {name} is this rank's own, not the mean: {sent} all-reduces, "
            f"expected {count}. The last bucket does not reach the limit: is it sent?"
        )
    return (
        f"the gradient of {name} is this rank's own, not the mean: wait for the all-reduce, then "
        f"copy each weight's part of the message into `weight.grad`"
    )


def check_messages(function: Callable) -> str:
    """Check that each bucket has one all-reduce, started in time and waited for once."""
    for number, step in enumerate(_observe(function)[0]):
        messages, sizes = step.messages, [message.bytes for message in step.messages]
        # When each bucket is complete, as the number of gradients that are ready.
        complete = [
            max(step.order.index(name) + 1 for name in bucket) for bucket in BUCKETS[step.limit]
        ]
        moments, expected = zip(*sorted(zip(complete, BYTES[step.limit])))
        assert sizes == [*expected], (
            f"number of all-reduces: {len(sizes)}, of {sizes} bytes, expected one per bucket: "
            f"{len(expected)}, of {[*expected]} bytes. Begin with the last weight, close a bucket "
            f"as soon as its gradients have {step.limit} bytes or more, and make one message of "
            f"each bucket, by `torch.cat`"
        )
        assert all(message.is_async for message in messages), (
            "all_reduce made backward wait for its result: expected async_op=True, which returns "
            "a handle at once"
        )
        for message, moment in zip(messages, moments):
            when = f"with {message.ready} of 6 gradients ready"
            assert message.in_backward and message.ready <= moment, (
                f"an all-reduce was started {when if message.in_backward else 'after backward'}, "
                f"expected with {moment} of 6 gradients ready: start it {HOOK}, when the bucket's "
                f"last gradient is there"
            )
        waits = [wait for message in messages for wait in message.waits]
        assert not any(in_backward for _, in_backward in waits), (
            "a handle's `wait()` was called during backward, expected afterwards: until the sum "
            "has arrived, nothing is computed"
        )
        assert all(where == number for where, _ in waits), (
            "`wait` waits for the all-reduces of an earlier step again: forget an all-reduce that "
            "has been waited for"
        )
    return "each bucket has one asynchronous all-reduce, as soon as it is full"


def _observe(function: Callable) -> list[list[Step]]:
    observed = _observe_pickled(cloudpickle.dumps(function))
    for steps in observed:
        assert not isinstance(steps, str), steps
    return observed


@cache
def _observe_pickled(function: bytes) -> list[list[Step]]:
    return on_ranks(observe, RANKS, function)


def _is_near(value: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(value, expected, rtol=1e-4, atol=1e-7)
