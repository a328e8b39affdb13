"""Lab 4.4 says what the records say."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from claims import text_of, text_of_quiz

from course.days import tuned
from course.runs import recordings
from course.runs.run import PROJECT
from course.topics import search

TEXT = text_of("day4_4_search")
QUIZ = text_of_quiz("day4_4")
BEHIND = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split("## Lab 4.4")[1].split())
H200 = "nvidia-h200"


def said(words: str, where: str = TEXT) -> None:
    assert words in where, words


@cache
def known() -> search.Recorded:
    return search.Recorded(recordings.recorded_runs(H200, "learning"))


@cache
def replayed() -> pd.DataFrame:
    return search.replayed(known()).set_index(["fields", "sampler"])["mean"]


def test_what_was_recorded_can_be_read_off() -> None:
    said("Lab 3.3 recorded 36 trainings: six learning rates at each of six batch sizes.")
    assert known().cells.shape == (6, 6) and known().cells.notna().all(axis=None)
    assert known()({"lr": 0.3, "batch_size": 256}) == known().cells.loc[0.3, 256]
    between = known()({"lr": 0.3, "batch_size": 362.04})  # half-way between 256 and 512
    assert between == pytest.approx(known().cells.loc[0.3, [256, 512]].mean(), abs=1e-3)


def test_which_sampler_finds_most() -> None:
    two, four = replayed()[2], replayed()[4]
    said("0.795 beside 0.800. Random has 0.785, the mean of 40 searches.")
    assert two["grid"] == pytest.approx(0.795, abs=5e-4)
    assert two["tpe"] == pytest.approx(0.800, abs=1e-3)
    assert two["random"] == pytest.approx(0.785, abs=1e-3)
    said(
        "The grid fell to 0.749: its 16 trials try two learning rates only. Random stays at 0.785."
    )
    assert four["grid"] == pytest.approx(0.749, abs=5e-4)
    assert four["random"] == pytest.approx(0.785, abs=1e-3)
    assert search.points("grid", known(), idle=2)["lr"].nunique() == 2
    assert search.points("random", known(), idle=2)["lr"].nunique() == 16
    said("TPE draws five at random")


def test_the_best_of_many_that_spread_like_a_bell() -> None:
    said("the best of 16 lies 1.8 standard deviations above the mean, and that of 100 lies 2.5")
    said("lies 2.5 standard deviations above their mean", QUIZ)
    drawn = np.random.default_rng(0).standard_normal((20_000, 100))
    assert round(drawn[:, :16].max(axis=1).mean(), 1) == 1.8
    assert round(drawn.max(axis=1).mean(), 1) == 2.5


def test_sizes_of_the_recorded_search() -> None:
    said("a ResNet-18 on all crops, 1,024 a batch, six epochs, four fields, 16 trials each time")
    config = tuned.tuned()
    assert (config.model, config.batch_size, config.epochs) == ("resnet18_cifar", 1024, 6)
    assert config.batch_size * config.steps == 65_536 and len(tuned.SPACE) == 4
    names = ("random", "tpe-median", "tpe-hyperband")
    assert {tuned.SEARCHES[name]["trials"] for name in names} == {16}
    said("chosen by its 1,024 validation crops. 7,168 others")
    assert config.val_images == 1024 and 8192 - config.val_images == 7168
    assert len(tuned.SEEDS["seed"]) == 16
