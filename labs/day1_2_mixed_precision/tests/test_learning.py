"""fp16 fails without loss scaling where gradients are tiny, and only there."""

import pandas as pd
import pytest
import torch

from course.charts import Picture
from labs.day1_2_mixed_precision import figures as pictures
from labs.day1_2_mixed_precision import learning

PIXELS = 64 * 224 * 224


def right(divided_by: int) -> pd.Series:
    """The share of the last 20 steps' digits that each run had right."""
    table = learning.learned_digits(divided_by)
    assert list(table) == ["fp32", "fp16", "fp16, loss scaled"] and len(table) == 200
    return table.tail(20).mean()


@pytest.mark.slow
def test_with_the_mean_over_a_batch_all_learn() -> None:
    assert right(divided_by=64).min() > 0.9


@pytest.mark.slow
def test_with_the_mean_over_all_pixels_fp16_alone_guesses() -> None:
    found = right(divided_by=PIXELS)
    assert found["fp16"] < 0.2  # guessing gives 0.1
    assert found["fp32"] > 0.88 and abs(found["fp16, loss scaled"] - found["fp32"]) < 0.03


def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    table = learning.learned_digits(steps=2)
    assert torch.get_num_threads() == before
    assert table.eq(table["fp32"], axis="index").iloc[0].all()  # the same weights, the same batch


def test_the_picture_shows_all_runs() -> None:
    picture = pictures.plot_learned(learning.learned_digits(PIXELS, steps=3), PIXELS)
    assert isinstance(picture, Picture)
    (axes,) = picture.axes
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown == ["fp32", "fp16", "fp16, loss scaled"]
    assert "3,211,264" in axes.get_title("left")
