"""Lab 4.5 on tracking says what the records and its sources say."""

from functools import cache

import pandas as pd
import pytest
from claims import text_of

from course.runs import recordings
from course.runs.run import PROJECT, Run
from course.runs.trackers.export import LOOK, TOOLS
from course.topics import tracking
from course.topics.tracking.carbon import EMBER, EMBER_STATISTA

TEXT = text_of("day4_5_practice")
BEHIND = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split("## Lab 4.5")[1].split())


def said(words: str, where: str = TEXT) -> None:
    assert words in where, words


@cache
def learned() -> pd.DataFrame:
    return tracking.together(recordings.recorded_runs("nvidia-h200", "learning"))


@cache
def searched() -> list[Run]:
    return recordings.recorded_runs("nvidia-h100", "search")


@cache
def grids() -> pd.DataFrame:
    table = tracking.by_grid(searched(), pue=tracking.PUE, host=tracking.HOST)
    return table.set_index("grid")


def test_a_hundred_trainings() -> None:
    said("Lab 3.3 made 112 trainings: eight optimizers, six batch sizes, three seeds.")
    table = learned()
    counts = [table[name].nunique() for name in ("optimizer", "batch_size", "seed")]
    assert (len(table), *counts) == (112, 8, 6, 3)
    said("Of more than sixty settings only those that **differ**")
    assert 60 < len(vars(searched()[0].config)) < 70


def test_what_goes_along() -> None:
    said("The 19 best all have the smallest batch.")
    smallest = learned()["batch_size"].eq(learned()["batch_size"].min())
    assert smallest[:19].all() and not smallest[19]
    shares = tracking.explained(learned())
    said("0.47 of the spread lies between batch sizes, 0.10 between optimizers.")
    assert (round(shares["batch_size"], 2), round(shares["optimizer"], 2)) == (0.47, 0.10)
    asked = shares[["optimizer", "lr", "batch_size", "seed"]]
    assert (asked.idxmax(), asked.idxmin()) == ("batch_size", "seed")
    said("But `steps` has the same 0.47, and `lr_warmup` more: each training saw as many images,")
    assert shares["steps"] == pytest.approx(shares["batch_size"])
    assert shares["lr_warmup"] > shares["steps"]
    assert (learned()["steps"] * learned()["batch_size"]).nunique() == 1
    said("Of the four that the lab asks for, learning rates have 12 values, optimizers 8", BEHIND)
    said("batch sizes 6, seeds 3.", BEHIND)
    assert learned()["lr"].nunique() == 12
    said("So even the 0.05 of the seeds", BEHIND)
    assert round(shares["seed"], 2) == 0.05


def test_what_ended_early() -> None:
    assert (
        len(tracking.tagged(recordings.recorded_runs("nvidia-h100"), "search", "cancelled")) == 23
    )


def test_three_tools() -> None:
    said("`export` writes for three of them.")
    assert len(TOOLS) == len(LOOK) == 3


def test_beyond_the_gpu() -> None:
    said("(`host`: at least 22 %)")
    assert pytest.approx(1.22, abs=5e-3) == tracking.HOST
    said("Super Micro's node drew 6.83 kW on average", BEHIND)
    assert pytest.approx(6.83) == tracking.HOST * 5.6
    said("**[power usage effectiveness](../docs/glossary.md#power-usage-effectiveness)**: 58 % on")
    assert tracking.PUE == 1.58
    said("The GPUs' part of each bar is hardly more than half.")
    share = grids()["gpus"] / grids()["grams"]
    assert share.between(0.5, 0.53).all()
    said("GPU joules are about half of the building's.")


def test_grams() -> None:
    said("64 trainings of lab 4.4, 0.069 kWh on the GPU. On the world's mean they are 64 g.")
    taken = sum(map(tracking.joules, searched())) / 3.6e6
    assert (len(searched()), round(taken, 3)) == (64, 0.069)
    assert grids().loc["world", "grams"] == pytest.approx(64, abs=0.5)
    said("The grid is worth a factor of 24.")
    said("The grid is a factor of 24, the code one of 6.")
    assert grids()["grams"].max() / grids()["grams"].min() == pytest.approx(24, abs=0.5)
    assert (grids()["grams"].idxmin(), grids()["grams"].idxmax()) == ("Norway", "India")


def test_grids_are_as_their_sources_say() -> None:
    said("France 56, Germany 381, China 582 and India 713 by [Our World in Data]", BEHIND)
    said("Norway 30 and the world 481 by Ember through [Statista]", BEHIND)
    by_source = {EMBER: {}, EMBER_STATISTA: {}}
    for name, grid in tracking.GRIDS.items():
        assert grid.year == 2023
        by_source[grid.source][name] = grid.g_per_kwh
    assert by_source == {
        EMBER: {"France": 56, "Germany": 381, "China": 582, "India": 713},
        EMBER_STATISTA: {"Norway": 30, "world": 481},
    }


def test_what_the_ladder_is_worth() -> None:
    said("from `device` in fp32 to `compile` in bf16 is worth 5.8 in joules per image")
    ladder = recordings.ladders("nvidia-h100")["GPU"]
    before, after = ladder["device", "fp32"], ladder["compile", "bf16"]
    ratio = before.joules_per_image / after.joules_per_image
    assert ratio == pytest.approx(5.8, abs=0.05)


def test_the_whole_bill() -> None:
    said("A kilowatt-hour or so, as an oven takes in an hour.")
    every = tracking.all_recorded()
    bill = tracking.bill(every).set_index("for")
    assert 0.5 < bill.loc["all", "kWh"] < 2
    said("nobody counted the 112 trainings, which shared one GPU, nor what processors took.")
    assert bill.loc["learning", ["runs", "counted"]].tolist() == [112, 0]
    assert bill.loc["learning", "kWh"] != bill.loc["learning", "kWh"]  # unknown is not nothing
    on_cpu = [run for run in every if run.record.device == "cpu"]
    assert on_cpu and not any(run.record.watts for run in on_cpu)


def test_habits() -> None:
    said("Eight habits from people who share a cluster.")
    habits = tracking.habits().set_index("habit")["command"]
    assert len(habits) == 8
    assert "afterok" in habits["chained jobs"]
    assert "--kill-on-invalid-dep=yes" in habits["chained jobs"]
