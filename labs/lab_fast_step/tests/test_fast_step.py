"""The lab of the fast step: wrong answers hear why, and pictures say what they show."""

from pathlib import Path

import pytest
from written_helpers import cell_of, defined, filled

from course.checks.functions import check_written
from labs import lab_fast_step as fast_step
from labs.lab_fast_step import verify as written

MEAN, SQUARE, VARIANCE = "W @ s / M", "((W @ G) * W).sum(1) / M", "square - mean**2"
RIGHT = [
    (MEAN, SQUARE, VARIANCE),
    ("(W * s).sum(1) / M", 'torch.einsum("nk,kl,nl->n", W, G, W) / M', VARIANCE),
    (MEAN, "(W * (W @ G)).sum(1) / M", "square - mean * mean"),
]
WRONG = {
    ("W @ s", SQUARE, VARIANCE): "a mean is divided by M",
    ("W @ s / (M - 1)", SQUARE, VARIANCE): "divided by M, not by M - 1",
    (MEAN, "((W @ G) * W).sum(1) / (M - 1)", VARIANCE): "BatchNorm divides by M",
    (MEAN, SQUARE, "(square - mean**2) * M / (M - 1)"): "BatchNorm divides by M",
    (MEAN, SQUARE, "square"): "G is not centred",
    (MEAN, "(W @ G).sum(1) / M", VARIANCE): "y² has W twice",
    (MEAN, "((W @ G) * W).sum(1)", VARIANCE): "the sum of y² has to be divided by M",
    (MEAN, "W @ G @ W.t() / M", VARIANCE): "only its diagonal is wanted",
    (MEAN, "(W @ G @ W.t()).diagonal() / M", VARIANCE): "a tensor of 576 numbers is made",
    ("s.mean() / M", SQUARE, VARIANCE): "not a number a channel",
}


def look(answers: tuple[str, ...], folder: Path) -> str:
    text = filled(cell_of("lab_fast_step", "statistics"), *answers)
    return str(check_written("fast_step.statistics", defined(text, "statistics", folder)))


@pytest.mark.parametrize("answers", RIGHT)
def test_right_answers_pass(answers: tuple[str, ...], tmp_path: Path, runs_root: Path) -> None:
    assert "goes on with yours" in look(answers, tmp_path)


@pytest.mark.parametrize(("answers", "told"), WRONG.items())
def test_wrong_answers_hear_why(
    answers: tuple[str, ...], told: str, tmp_path: Path, runs_root: Path
) -> None:
    said = " ".join(look(answers, tmp_path).split())
    assert told in said
    assert "goes on with yours" not in said


def test_the_given_function_passes() -> None:
    assert written.is_statistics(written.given) and written.makes_no_y(written.given)


def test_the_pictures_say_what_they_show() -> None:
    table, moved = fast_step.passes(), fast_step.megabytes()
    assert "eager 138, compile 100, fast 61" in fast_step.plot_moved(table).alt
    walls = fast_step.plot_walls(fast_step.measured(), moved, **fast_step.ceilings())
    assert "fast 8,465" in walls.alt
