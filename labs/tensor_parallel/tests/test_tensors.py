"""Tests of tensor parallelism on real ranks, and recorded runs."""

from collections.abc import Callable

import pytest
import torch
from torch import distributed

from course.checks.functions import check_written
from labs import tensor_parallel as lab
from labs.tensor_parallel.strips import exchange

pytestmark = pytest.mark.slow


def test_without_the_sum_training_is_slightly_slower() -> None:
    losses = lab.train_without_sum()
    assert [*losses["shared"]] == pytest.approx([*losses["full"]], rel=1e-5)
    ratio = losses["without_sum"] / losses["full"]
    assert ratio.iloc[0] == pytest.approx(1, rel=1e-6)
    assert losses["without_sum"].is_monotonic_decreasing and ratio.iloc[1:].between(1, 1.05).all()


def test_computed_messages() -> None:
    gb = lab.communication_volume("coatnet_pico_rw_224", [1, 10])
    shared = gb["tensor_parallel"]
    assert shared[10] == pytest.approx(10 * shared[1]) and gb["data_parallel"].nunique() == 1


def test_recorded_runs_are_compared_with_ddp_at_their_batch() -> None:
    table = lab.compare_with_ddp(lab.parallel_runs())
    assert {*table.loc[["ddp-24", "ddp-48"], "of_ddp"]} == {1.0}
    assert not table.index.str.contains("traced").any() and table["of_ddp"].notna().all()


def send_all(first: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Get the right rows from messages that contain everyone's."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    received = []
    for rows, neighbour in ((last, rank - 1), (first, rank + 1)):
        parts = [torch.zeros_like(rows) for _ in range(ranks)]
        distributed.all_gather(parts, rows)
        received.append(parts[neighbour] if 0 <= neighbour < ranks else torch.zeros_like(rows))
    return tuple(received)


def one_by_one(first: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exchange rows by single messages that are waited for afterwards."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    received, handles = (torch.zeros_like(last), torch.zeros_like(first)), []
    for rows, buffer, neighbour in ((first, received[0], rank - 1), (last, received[1], rank + 1)):
        if 0 <= neighbour < ranks:
            handles.append(distributed.isend(rows, neighbour))
            handles.append(distributed.irecv(buffer, neighbour))
    for handle in handles:
        handle.wait()
    return received


def without_borders(first: torch.Tensor, last: torch.Tensor) -> None:
    """Send to a rank that doesn't exist."""
    rank = distributed.get_rank()
    handles = [distributed.isend(rows, rank + step) for rows, step in ((first, -1), (last, 1))]
    for handle in handles:
        handle.wait()


def without_waiting(first: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    received = torch.zeros_like(last), torch.zeros_like(first)
    for rows, buffer, neighbour in zip((first, last), received, (rank - 1, rank + 1)):
        if 0 <= neighbour < ranks:
            distributed.isend(rows, neighbour), distributed.irecv(buffer, neighbour)
    return received


@pytest.mark.parametrize("function", [exchange, one_by_one])
def test_right_exchanges_pass(function: Callable) -> None:
    assert check_written("tensor_parallel.halo", function).passed


WRONG = {
    "zeros": (
        lambda first, last: (0 * last, 0 * first),
        "rank 0 of 2: from below it has zeros, expected rank 1's first rows",
    ),
    "swapped": (lambda first, last: exchange(last, first), "rank 1's last rows, expected rank 1's"),
    "nothing": (lambda first, last: None, "it returned None, expected two tensors"),
    "not a number": (
        lambda first, last: (first * torch.nan, first),
        "rank 0 of 2: from above it has tensor([[nan, nan, nan],",
    ),
    "arrays": (
        lambda first, last: tuple(rows.numpy() for rows in exchange(first, last)),
        "from above it has array([[0., 0., 0.],",
    ),
    "changes its argument": (
        lambda first, last: (*exchange(first, last), first.zero_())[:2],
        "it changes its argument `first`",
    ),
    "ends Python": (lambda first, last: exit(), "it called exit() instead of returning"),
    "no waiting": (without_waiting, "rows: have you waited for it?"),
    "borders": (without_borders, "ValueError: send: there is no rank "),
    "all rows": (send_all, "its messages are {'allgather': 2}, expected one send and one recv"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_exchanges_fail_with_a_hint(name: str) -> None:
    function, hint = WRONG[name]

    def wrong(first, last):  # whose source the check can read
        return function(first, last)

    checked = check_written("tensor_parallel.halo", wrong)
    assert not checked.passed and checked.function is exchange
    assert hint in repr(checked)
