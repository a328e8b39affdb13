"""Tests of right and wrong orders of passes, and memory that is computed."""

import pytest

from course.checks.functions import check_written
from course.config import rung
from labs import pipeline as lab
from labs.pipeline.configs import BATCH
from labs.pipeline.orders import CASES, one_f_one_b
from labs.tensor_parallel.measurements import parallel_runs

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


def test_computed_memory_is_near_the_recorded_peaks() -> None:
    runs = parallel_runs()
    names = {
        "DDP": "ddp-48",
        "FSDP2": "zero3-48",
        "tensor": "tensor-48",
        "pipeline, gpipe": "pipe-gpipe-8",
        "pipeline, 1f1b": "pipe-1f1b-8",
    }
    table = lab.rank_memory(runs["ddp-48"].config, ranks=2, micro_batches=8)
    for name, label in names.items():
        peak = max(rank["peak_gib"] for rank in runs[label].ranks)
        assert runs[label].config.batch_size == BATCH
        # Autocast, which is computed here, normalises in fp32; FSDP2's policy and tensor-parallel
        # blocks keep bf16, so that their activations are smaller.
        assert 0.9 * peak < table["sum_gib"][name] < 1.05 * peak


def test_a_network_of_over_a_billion_weights_is_split() -> None:
    config = rung("tensor", model="vit_gigantic_patch14_224", batch_size=8)
    table = lab.rank_memory(config, ranks=4, micro_batches=8)
    assert round(table["weights_m"]["DDP"]) == 1844
    assert table["weights_m"]["FSDP2"] == table["weights_m"]["DDP"] / 4
    assert table["sum_gib"]["pipeline, 1f1b"] < table["sum_gib"]["pipeline, gpipe"]
