"""Lab 3.3 says what the records say."""

import re
from functools import cache

import pandas as pd
import pytest
from claims import network, text_of, text_of_quiz

from course.config import Config
from course.data.crop_set import Recipe
from course.data.loader import NOTED
from course.days import learning
from course.runs import recordings
from course.runs.run import PROJECT, Run
from course.topics import large_batch
from course.training import models, optimizers

TEXT, QUIZ = text_of("day3_3_large_batch"), text_of_quiz("day3_3")
BEHIND = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split("## Lab 3.3")[1].split())
FEW, MANY = learning.FEW_MANY


@cache
def recorded() -> dict[str, Run]:
    return {run.config.rung: run for run in recordings.recorded_runs("nvidia-h200", "learning")}


@cache
def ends() -> pd.DataFrame:
    return large_batch.ends(recorded().values()).set_index("run")


@cache
def seeds() -> pd.DataFrame:
    """Accuracy of the trainings with three seeds: mean, min and max by optimizer and batch."""
    table = large_batch.over_seeds(ends().reset_index())
    found = table.groupby(["optimizer", "batch_size"])["val_top1"]
    assert (found.count() == 3).all()
    return found.agg(["mean", "min", "max"])


def grid() -> list[Run]:
    return [recorded()[cfg.rung] for cfg in learning._grid()]


def top1(name: str) -> float:
    return round(ends().loc[name, "val_top1"], 2)


def said(words: str) -> None:
    assert words in TEXT, words


def behind(words: str) -> None:
    assert words in BEHIND, words


@cache
def stepped() -> dict[str, Run]:
    """By optimizer the run that shows how long a step takes."""
    runs = recordings.recorded_runs("nvidia-h200", "optimizers")
    return {run.config.optimizer: run for run in runs}


def spread(part: str, names: set[str]) -> tuple[float, float]:
    """The shortest and the longest time of a step's part with these optimizers, in ms."""
    found = [round(getattr(stepped()[name].record, part) * 1e3, 1) for name in names]
    return min(found), max(found)


def test_the_crops_and_the_updates() -> None:
    said('`data="crops"` are 65,536 crops of 32 pixels')
    assert Recipe().train == learning.CROPS_IN_ALL == 65_536
    said("all crops, six times")
    said("With 256 images in a batch these are 1,536 updates, with 8,192 only 48.")
    updates = ends().query("seed == 0 and optimizer == 'sgd'").groupby("batch_size")["updates"]
    assert (updates.max()[FEW], updates.max()[MANY]) == (1536, 48)
    assert learning.EPOCHS == 6


def test_few_and_many_images() -> None:
    said("an accuracy of 0.80 in validation, at the learning rate 0.3")
    said("the large batch is far behind: 0.44")
    means = seeds()["mean"].round(2)
    assert (means["sgd", FEW], means["sgd", MANY]) == (0.80, 0.44)


def test_where_scaling_breaks() -> None:
    assert len(grid()) == 36
    said("A grid of 36 trainings is dear.")
    said("up to 1,024 images it runs through good cells (0.75 at the rate 1)")
    assert top1("sgd-256-0.3") == 0.81 and top1("sgd-1024-1") == 0.75
    line = large_batch.along(large_batch.ends(grid()), power=1).set_index("batch_size")
    assert [*line["lr"]] == [0.3, 1, 1, 3, 3, 10]
    assert line["val_top1"].loc[:1024].min() > 0.71 > line["val_top1"].loc[2048:].max()
    said("At 2,048 it crosses 0.30.")
    assert top1("sgd-2048-3") == 0.30 and top1("sgd-2048-1") == 0.60
    said("The best rate is 0.3 in *every* column.")
    best = large_batch.best(large_batch.ends(grid()))
    assert {*best["lr"]} == {0.3} and len(best) == len(learning.BATCHES)
    said("any rate from 0.1 to 1 will do")
    assert min(top1(f"sgd-256-{rate}") for rate in ("0.1", "0.3", "1")) >= 0.79


def test_updates_until_a_loss() -> None:
    found = large_batch.critical(grid(), 1.8)
    said("From 256 images to 1,024, updates fall from 109 to 46.")
    said("From there to 8,192 they only fall to 28, and images rise fivefold.")
    updates = found.table.set_index("batch_size")["updates"]
    assert [updates[size] for size in (256, 1024, 8192)] == [109, 46, 28]
    assert round(28 * 8192 / (46 * 1024)) == 5
    said("with a scale of about 700 images")
    scales = [round(large_batch.critical(grid(), loss).size) for loss in (1.7, 1.8, 2.0)]
    assert scales == [687, 735, 723]
    assert "With 1.7 the scale comes out as 687, with 2.0 as 723." in BEHIND
    assert "8,192 images after 28 of 48 updates" in BEHIND


def test_the_search() -> None:
    found = {size: large_batch.search(recorded()[f"find-{size}-10"]) for size in (FEW, MANY)}
    said("For the H200 these are 0.32 with 256 images, where the grid's best is 0.3, and 0.11")
    assert [round(found[size].lowest / 4, 2) for size in (FEW, MANY)] == [0.32, 0.11]
    said("where the grid has 0.39 at 0.1 and 0.44 at 0.3")
    assert (top1("sgd-8192-0.1"), top1("sgd-8192-0.3")) == (0.39, 0.44)
    said("0.003 with 256 images")
    assert round(found[FEW].steepest, 3) == 0.003


def test_courses_of_the_rate() -> None:
    said("0.41 to 0.46 where it does, 0.34 where it does not")
    fall = [top1(f"{name}-8192-0.3") for name in ("falls", "cosine", "one-cycle", "sgd")]
    assert (min(fall), max(fall), top1("warm-up-8192-0.3")) == (0.41, 0.46, 0.34)
    said("0.46 without and 0.44 with it")
    assert top1("falls-8192-0.3") == 0.46
    said("three seeds of the same differ by up to 0.03")
    assert round(seeds().loc[("sgd", MANY), "max"] - seeds().loc[("sgd", MANY), "min"], 2) == 0.03


def test_decay_averages_and_smoothing() -> None:
    said("All end between 0.798 and 0.809.")
    plain = [ends().loc[f"sgd-256-0.3{seed}", "val_top1"] for seed in ("", "-seed-1", "-seed-2")]
    beside = [ends().loc[f"{name}-256-0.3", "val_top1"] for name in learning.BESIDE]
    assert len(beside) == 4
    every = plain + beside
    assert (round(min(every), 3), round(max(every), 3)) == (0.798, 0.809)
    said("Plain SGD's own seeds lie 0.009 apart, and no other training lies further from their")
    apart, mean = max(plain) - min(plain), sum(plain) / 3
    assert round(apart, 3) == 0.009 > max(abs(each - mean) for each in beside)


def test_decay_averages_and_smoothing_behind_the_lab() -> None:
    behind("averages of the weights that keep 0.99 of themselves at each update (0.805)")
    behind("labels smoothed by 0.1 (0.808), and decay for filters and matrices alone (0.809)")
    behind("where three seeds reach 0.807, 0.798 and 0.800")
    assert learning.BESIDE["averages"] == {"ema": 0.99}
    assert learning.BESIDE["smoothing"] == {"label_smoothing": 0.1}
    names = ("averages", "smoothing", "decay-spares-vectors", "sgd")
    found = [ends().loc[f"{name}-256-0.3", "val_top1"] for name in names]
    found += [ends().loc[f"sgd-256-0.3-seed-{seed}", "val_top1"] for seed in (1, 2)]
    assert [round(each, 3) for each in found] == [0.805, 0.808, 0.809, 0.807, 0.798, 0.800]
    behind("With 8,192 images to validate, chance alone makes 0.004 of an accuracy of 0.8")
    assert round((0.8 * 0.2 / Recipe().val) ** 0.5, 3) == 0.004
    behind("averages have 0.787, and the other six trainings of the lab's table 0.687 to 0.767")
    table = large_batch.learned(recorded().values()).query("epoch == 5").set_index("run")
    others = [*(f"{name}-256-0.3" for name in learning.BESIDE if name != "averages"), "sgd-256-0.3"]
    others += ["sgd-256-0.3-seed-1", "sgd-256-0.3-seed-2"]
    fifth = table.loc[others, "val_top1"].round(3)
    assert (len(fifth), fifth.min(), fifth.max()) == (6, 0.687, 0.767)
    assert round(table.loc["averages-256-0.3", "val_top1"], 3) == 0.787


def test_batches_of_both_sizes_take_the_same_images() -> None:
    """That they do, the notebook's own runs show: test_notebooks looks at them."""
    said("each run notes the first 64 of an epoch")
    assert NOTED == 64


def test_optimizers() -> None:
    few, many = (seeds()["mean"].xs(size, level="batch_size").round(2) for size in (FEW, MANY))
    assert len(few) == len(many) == len(learning.OWN) + 1
    said("With 256 images nearly all end between 0.78 and 0.82")
    assert sum(0.78 <= each <= 0.82 for each in few) == len(few) - 1
    said("do no better than SGD: 0.45, 0.46 and 0.44. AdamW reaches 0.50.")
    assert [many[name] for name in ("lars", "lamb", "sgd", "adamw")] == [0.45, 0.46, 0.44, 0.50]
    said("**Muon** reaches 0.72.")
    assert many["muon"] == 0.72
    said("It loses an eighth of its accuracy, all others a third or more.")
    lost = 1 - many / few
    assert lost["muon"] == pytest.approx(1 / 8, abs=0.01) and lost.drop("muon").min() > 1 / 3
    assert "Muon's three seeds lie 0.2 and more above all others" in QUIZ
    others = seeds().xs(MANY, level="batch_size").drop("muon")["max"].max()
    assert seeds().loc[("muon", MANY), "min"] - others >= 0.2


def test_what_was_tried_stands_behind_the_lab() -> None:
    assert f"{len(recorded())} runs, two of them searches" in BEHIND
    for name, tried in (("AdamW", "adamw"), ("Lion", "lion"), ("Muon", "muon"), ("LAMB", "lamb")):
        (row,) = re.findall(rf"\| {name} \| ([^|]+) \| ([^|]+) \|", BEHIND)
        for cell, size in zip(row, (FEW, MANY)):
            rates = {float(rate) for rate in re.findall(r"[\d.]+", cell)}
            runs = ends().query(f"optimizer == '{tried}' and batch_size == {size}")
            assert rates == {*runs["lr"]}
    assert "Lion at 0.003 (0.48, instead of 0.41)" in BEHIND
    assert top1("lion-8192-0.003") == 0.48
    assert "Muon at 0.01 (0.73, instead of 0.72)" in BEHIND
    assert top1("muon-8192-0.01") == 0.73


@pytest.mark.slow
def test_the_state_of_optimizers() -> None:
    said("with 0.095 GiB of weights")
    kept = {name: large_batch.state_gib(name, "resnet50") for name in learning.OWN | {"sgd": {}}}
    said("SGD, Lion and Muon keep one number for each weight, AdamW and LAMB two.")
    assert {round(kept[name], 3) for name in ("sgd", "lion", "muon")} == {0.095}
    assert all(kept[name] == pytest.approx(2 * kept["sgd"], rel=0.01) for name in ("adamw", "lamb"))
    said("Measured, their peaks of memory are 0.10 GiB higher.")
    peaks = {name: run.record.peak_gib for name, run in stepped().items()}
    assert {round(peaks[name] - peaks["sgd"], 2) for name in ("adamw", "lamb")} == {0.10}
    assert {round(peaks[name] - peaks["sgd"], 2) for name in ("lion", "muon")} == {0.0}


def test_the_cost_of_a_step() -> None:
    ms = {name: round(run.record.step_s * 1e3, 1) for name, run in stepped().items()}
    assert set(ms) == {"sgd", *learning.OWN}
    said("AdamW adds 0.3 ms to SGD's 54.3, LARS 0.6")
    assert ms["sgd"] == 54.3
    more = {name: stepped()[name].record.step_s - stepped()["sgd"].record.step_s for name in ms}
    assert [round(more[name] * 1e3, 1) for name in ("adamw", "lars")] == [0.3, 0.6]
    said("In another session LAMB, Lion and schedule-free SGD took 54.8 to 55.4 ms")
    others = [ms[name] for name in ("lamb", "lion", "schedulefree")]
    assert (min(others), max(others)) == (54.8, 55.4)
    said("**Muon 74.1**: 3,454 images/s beside Lion's 4,636. 18 ms of it are the update")
    assert ms["muon"] == 74.1
    assert [round(stepped()[name].record.images_per_s) for name in ("muon", "lion")] == [3454, 4636]
    assert round(stepped()["muon"].record.optimizer_s * 1e3) == 18
    said("15 products of matrices for each filter matrix")
    optimizers.create(models.create("resnet18", 10).parameters(), Config(optimizer="muon"))
    from timm.optim.muon import DEFAULT_NS_STEPS  # imported alone, timm would lift Dynamo's limit

    assert DEFAULT_NS_STEPS * 3 == 15


def test_the_cost_of_a_step_behind_the_lab() -> None:
    late = {"lamb", "lion", "muon", "schedulefree"}
    begun = {name: pd.Timestamp(run.record.started_at) for name, run in stepped().items()}
    first, second = {*begun} - late, late
    assert max(begun[name] for name in first) < min(begun[name] for name in second)
    behind("eleven hours later")
    assert round((begun["lamb"] - begun["sgd"]).total_seconds() / 3600) == 11
    behind("lasts 25.6 to 25.8 ms instead of 25.2 to 25.3")
    assert spread("forward_s", second) == (25.6, 25.8) and spread("forward_s", first) == (
        25.2,
        25.3,
    )
    behind("18.9 ms between them")
    records = {name: run.record for name, run in stepped().items()}
    assert round((records["muon"].step_s - records["lion"].step_s) * 1e3, 1) == 18.9
    behind("Of Muon's 74.1 ms the update takes 18.2, of the others' at most 1.0.")
    assert spread("optimizer_s", {"muon"})[0] == 18.2
    assert spread("optimizer_s", {*records} - {"muon"})[1] == 1.0
    behind("quartiles of 69.4 and 77.0 ms, where all others' lie within 0.1 ms")
    quarters = {name: (each.step_s_q1, each.step_s_q3) for name, each in records.items()}
    assert [round(each * 1e3, 1) for each in quarters["muon"]] == [69.4, 77.0]
    assert all(high - low < 1e-4 for name, (low, high) in quarters.items() if name != "muon")
    behind("took 486 W, where the others of the session had 578 to 623")
    watts = {name: round(each.watts) for name, each in records.items()}
    assert watts["muon"] == 486
    assert sorted(watts[name] for name in late - {"muon"})[:: len(late) - 2] == [578, 623]
    behind("for each of 54 matrices")
    assert sum(each.ndim > 1 for each in network("resnet50").parameters()) == 54
