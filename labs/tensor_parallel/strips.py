"""Spatial partitioning: ranks that have a strip of an image each, and exchange its border rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import distributed
from torch.distributed import P2POp, batch_isend_irecv, irecv, isend

from course._compat import TorchDispatchMode
from course.analysis import on_ranks
from course.lab import results

Tensors = tuple[torch.Tensor, torch.Tensor]
Exchange = Callable[[torch.Tensor, torch.Tensor], Tensors]
SIZES = (2, 4)  # ranks that a check uses
ROWS = ("first", "last")
LATE_S = 0.1  # of every second rank in a check


def exchange(first: torch.Tensor, last: torch.Tensor) -> Tensors:
    """Send a strip's border rows to its neighbours: the solution of the lab's exercise."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    received = torch.zeros_like(last), torch.zeros_like(first)
    messages = []
    for rows, buffer, neighbour in zip((first, last), received, (rank - 1, rank + 1)):
        if 0 <= neighbour < ranks:
            messages += [P2POp(isend, rows, neighbour), P2POp(irecv, buffer, neighbour)]
    for message in batch_isend_irecv(messages):
        message.wait()
    return received


class Messages(TorchDispatchMode):
    """Counts this rank's messages by PyTorch's name; one whose handle is lost goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.handles: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None):
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        name, ranks = func.__name__.partition(".")[0].strip("_"), distributed.get_world_size()
        if name in ("send", "recv") and not 0 <= args[2] < ranks:  # Gloo would crash
            raise ValueError(f"{name}: there is no rank {args[2]}, only 0 to {ranks - 1}")
        self.counts[name] += 1
        self.handles.append(func(*args, **(kwargs or {})))
        return self.handles[-1]


def _call(rank: int, ranks: int, function: Exchange) -> tuple[Any, Counter[str]]:
    """Call an exchange on a rank; return its result, and its messages."""
    first, last = (torch.full((2, 3), 10.0 * (rank + 1) + side) for side in (0, 1))
    distributed.barrier()
    time.sleep(LATE_S * (rank % 2))  # so that rows aren't there yet if nothing waits for them
    with Messages() as messages:
        result = deepcopy(results.call(function, first, last))  # before late rows arrive
    distributed.barrier()
    return result, messages.counts


def check_rows(function: Exchange) -> str:
    """Check that each rank gets its neighbours' rows, and zeros at the image's borders."""
    for ranks in SIZES:
        for rank, (result, counts) in enumerate(on_ranks(_call, ranks, function)):
            assert isinstance(result, tuple | list) and len(result) == 2, (
                f"rank {rank} of {ranks}: it returned {result!r:.60}, expected two tensors"
            )
            for side, tensor, sender in zip(("above", "below"), result, (rank - 1, rank + 1)):
                rows = ROWS[side == "above"]
                is_rank = 0 <= sender < ranks
                expected = f"rank {sender}'s {rows} rows" if is_rank else "zeros"
                rows_there = _describe(tensor)
                assert rows_there == expected, (
                    f"rank {rank} of {ranks}: from {side} it has {rows_there}, expected {expected}"
                    + ": have you waited for it?" * (rows_there == "zeros" and counts["recv"] > 0)
                )
    return f"on {' and '.join(map(str, SIZES))} ranks, each has its neighbours' rows"


def _describe(tensor: Any) -> str:
    """Say whose rows a tensor of `_call` has."""
    text = f"{tensor!r:.100}"
    if isinstance(tensor, torch.Tensor) and tensor.shape == (2, 3):
        names = {10.0 * (rank + 1) + side: f"rank {rank}'s {ROWS[side]} rows"
                 for rank in range(SIZES[-1]) for side in (0, 1)}  # fmt: skip
        values = tensor.unique().tolist()
        text = text if len(values) > 1 else (names | {0.0: "zeros"}).get(values[0], text)
    return text


def check_messages(function: Exchange) -> str:
    """Check that a rank sends one message to each neighbour, and nothing else."""
    ranks = SIZES[-1]
    for rank, (_, counts) in enumerate(on_ranks(_call, ranks, function)):
        neighbours = (rank > 0) + (rank < ranks - 1)
        assert counts == {"send": neighbours, "recv": neighbours}, (
            f"rank {rank} of {ranks}: its messages are {dict(counts)}, expected one send and one "
            f"recv for each of {neighbours} neighbours"
        )
    return "each rank sends one message to each neighbour, however many ranks there are"
