"""Tests of right and wrong orders of passes, and of backward passes by hand."""

import pytest
from torch import distributed

from course.checks.functions import check_written
from labs import pipeline as lab
from labs.pipeline.by_hand import backward_pass
from labs.pipeline.orders import CASES, one_f_one_b

NAME = "pipeline.1f1b"


def warm_up_with(count, micro_batches):
    """Return `count` forward passes, then backward and forward passes in turn."""
    order = [("F", number) for number in range(count)]
    for number in range(micro_batches):
        order.append(("B", number))
        if count + number < micro_batches:
            order.append(("F", count + number))
    return order


def usual(stage, stages, micro_batches):
    return warm_up_with(min(stages - stage, micro_batches), micro_batches)


def pairs_of_f_and_b(stage, stages, micro_batches):
    """Return the same order, as lists, from pairs of a forward and a backward pass."""
    ahead = min(stages - stage - 1, micro_batches)
    order = [["F", number] for number in range(ahead)]
    for number in range(ahead, micro_batches):
        order += [["F", number], ["B", number - ahead]]
    return order + [["B", number] for number in range(micro_batches - ahead, micro_batches)]


WRONG = {
    "nothing": (lambda *sizes: None, "it returned None, expected a list of passes"),
    "no passes": (lambda *sizes: [], r'stage 0 of 4 has no \("F", 0\)'),
    "numbers": (lambda stage, stages, count: [*range(count)], "0 in its list, expected pairs"),
    "words": (
        lambda stage, stages, count: [("forward", number) for number in range(count)],
        r'\("forward", 0\) is no pass: expected "F" or "B"',
    ),
    "GPipe": (lambda stage, stages, count: warm_up_with(count, count), "that is GPipe's order"),
    "stages from the end": (
        lambda stage, stages, count: warm_up_with(min(stage + 1, count), count),
        r'deadlock: stage 0 waits for \("B", 0\) of stage 1, stage 1 waits for \("F", 1\)',
    ),
    "no warm-up": (
        lambda stage, stages, count: warm_up_with(1, count),
        r'75% of the time is idle, expected 27%: stage 0 of 4 waits for \("B", 0\)',
    ),
    "one less": (
        lambda stage, stages, count: warm_up_with(min(max(stages - stage - 1, 1), count), count),
        "stores 3 of at most 4",
    ),
    "few micro-batches": (
        lambda stage, stages, count: warm_up_with(stages - stage, count),
        r'2 micro-batches: stage 0: \("F", 2\) does not exist.*fewer micro-batches than stages',
    ),
    "no end": (
        lambda stage, stages, count: usual(stage, stages, count) + [("F", count), ("B", count)],
        "if no forward pass is left",
    ),
    "backward first": (
        lambda *sizes: usual(*sizes)[::-1],
        r'\("B", 7\) is listed before \("F", 7\)',
    ),
    "one missing": (lambda *sizes: usual(*sizes)[:-1], r'stage 0 of 4 has no \("B", 7\)'),
    "one twice": (lambda *sizes: [*usual(*sizes), ("F", 0)], r'\("F", 0\) is in the list twice'),
}


@pytest.mark.parametrize("function", [one_f_one_b, usual, pairs_of_f_and_b])
def test_right_orders_pass(function) -> None:
    checked = check_written(NAME, function)
    assert checked.passed and "at most 4 of 8 micro-batches" in repr(checked)
    assert "your order: 27% of the stages' time idle" in lab.plot_order(function).alt


@pytest.mark.parametrize("name", WRONG)
def test_wrong_orders_fail_with_a_hint(name: str) -> None:
    wrong, hint = WRONG[name]

    def function(stage, stages, micro_batches):  # whose source the check can read
        return wrong(stage, stages, micro_batches)

    checked = check_written(NAME, function)
    assert not checked.passed and checked.function is one_f_one_b
    with pytest.raises(AssertionError, match=hint):
        raise AssertionError(repr(checked))
    sizes = (4, 2) if name == "few micro-batches" else CASES[0]
    alt = lab.plot_order(function, *sizes).alt
    if name in ("nothing", "no passes", "numbers"):
        assert "our order, until yours returns one" in alt
    else:
        assert "your order: stage" in alt or "deadlock" in alt or "is idle" in alt


def test_a_blank_is_reported_and_drawn_as_the_solution() -> None:
    def function(stage, stages, micro_batches):
        return [("F", number) for number in range(...)]

    assert "a blank is left" in repr(check_written(NAME, function))
    assert "our order, until yours returns one" in lab.plot_order(function).alt


def ignore_next(features, result, sent):
    """Begin from ones instead of the gradient that the next rank sends."""
    result.backward(result.new_ones(result.shape))
    if (rank := distributed.get_rank()) > 0:
        sent.append(distributed.isend(features.grad, rank - 1))


def send_result(features, result, sent):
    """Send on the gradient that was received."""
    rank, last = distributed.get_rank(), distributed.get_world_size() - 1
    gradient = result.new_ones(features.shape)
    if rank < last:
        distributed.recv(gradient, rank + 1)
    result.backward(gradient if rank < last else None)
    if rank > 0:
        sent.append(distributed.isend(gradient, rank - 1))


def wait_for_sends(features, result, sent):
    """Do the right thing, but wait until the rank before receives."""
    handles = []
    backward_pass(features, result, handles)
    for handle in handles:
        handle.wait()


WRONG_BACKWARD = {
    ignore_next: r"rank 0 of 3, gpipe: its messages are {'send': 4}, expected 4 in each direction",
    send_result: r"rank 0 of 3, gpipe: the norm of its gradient is .*sends that of its own input",
    wait_for_sends: r"rank 1 of 3: it appends 0 handles to `sent`, expected 1",
}


@pytest.mark.slow
def test_a_right_backward_pass_passes() -> None:
    assert check_written("pipeline.backward", backward_pass).passed


@pytest.mark.slow
@pytest.mark.parametrize("function", WRONG_BACKWARD)
def test_wrong_backward_passes_fail_with_a_hint(function) -> None:
    checked = check_written("pipeline.backward", function)
    assert not checked.passed and checked.function is backward_pass
    with pytest.raises(AssertionError, match=WRONG_BACKWARD[function]):
        raise AssertionError(repr(checked))
