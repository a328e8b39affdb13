"""Lab 3.3 says what the records say."""

import re
from functools import cache

import pandas as pd
import pytest
from claims import text_of, text_of_quiz

from course.data.crop_set import Recipe
from course.days import day3
from course.runs import recordings
from course.runs.run import PROJECT, Run
from course.topics import large_batch

TEXT, QUIZ = text_of("day3_3_large_batch"), text_of_quiz("day3_3")
BEHIND = " ".join((PROJECT / "docs/behind-the-labs.md").read_text().split("## Lab 3.3")[1].split())
FEW, MANY = day3.FEW_MANY


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
    return [recorded()[cfg.rung] for cfg in day3._grid()]


def top1(name: str) -> float:
    return round(ends().loc[name, "val_top1"], 2)


def said(words: str) -> None:
    assert words in TEXT, words


def test_the_crops_and_the_updates() -> None:
    said('`data="crops"` are 65,536 crops of 32 pixels')
    assert Recipe().train == day3.CROPS_IN_ALL == 65_536
    said("all crops, six times")
    said("With 256 images in a batch these are 1,536 updates, with 8,192 only 48.")
    updates = ends().query("seed == 0 and optimizer == 'sgd'").groupby("batch_size")["updates"]
    assert (updates.max()[FEW], updates.max()[MANY]) == (1536, 48)
    assert day3.EPOCHS == 6


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
    assert {*best["lr"]} == {0.3} and len(best) == len(day3.BATCHES)
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


def test_decay() -> None:
    said("Without any decay, the H200 reached 0.80 with 256 images, and with it 0.80 to 0.81.")
    assert top1("no-decay-256-0.3") == 0.80
    assert [round(seeds().loc[("sgd", FEW), which], 2) for which in ("min", "max")] == [0.80, 0.81]


def test_averages_and_smoothing() -> None:
    said("Nor is there one if vectors are spared (0.81).")
    assert top1("decay-spares-vectors-256-0.3") == 0.81
    said("spreads it over all classes: 0.81")
    assert top1("smoothing-256-0.3") == 0.81
    said("are validated instead of the weights: 0.81, too.")
    assert top1("averages-256-0.3") == 0.81
    said("0.76 after four epochs, where the weights themselves have 0.63 to 0.69")

    def fourth(name: str) -> float:
        table = large_batch.learned([recorded()[name]]).set_index("epoch")
        return round(table["val_top1"][4], 2)

    assert fourth("averages-256-0.3") == 0.76
    plain = [fourth(f"sgd-256-0.3{seed}") for seed in ("", "-seed-1", "-seed-2")]
    assert (min(plain), max(plain)) == (0.63, 0.69)


def test_optimizers() -> None:
    few, many = (seeds()["mean"].xs(size, level="batch_size").round(2) for size in (FEW, MANY))
    assert len(few) == len(many) == len(day3.OWN) + 1
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


def test_steps_and_state() -> None:
    runs = recordings.recorded_runs("nvidia-h200", "optimizers")
    ms = {run.config.optimizer: run.record.step_s * 1e3 for run in runs}
    said("AdamW adds 0.3 ms to 54.3, LARS 0.6")
    assert round(ms["sgd"], 1) == 54.3
    assert [round(ms[name] - ms["sgd"], 1) for name in ("adamw", "lars")] == [0.3, 0.6]
    said("Only Muon multiplies matrices, which takes 20 ms.")
    assert round(ms["muon"] - ms["sgd"]) == 20
    assert max(ms[name] - ms["sgd"] for name in ms if name != "muon") < 1.2
    said("with 0.095 GiB of weights")
    kept = {name: large_batch.state_gib(name, "resnet50") for name in ("sgd", "lion", "adamw")}
    assert round(kept["sgd"], 3) == round(kept["lion"], 3) == 0.095
    assert kept["adamw"] == pytest.approx(2 * kept["sgd"], rel=0.01)
