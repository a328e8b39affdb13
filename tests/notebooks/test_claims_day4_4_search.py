"""Lab 4.4 says what the records say."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from claims import text_of, text_of_quiz

from course.config import Config
from course.data.loader import to_validate
from course.days import tuned
from course.jobs.trials import taking
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


@pytest.mark.slow
def test_which_sampler_finds_most() -> None:
    two, four = replayed()[2], replayed()[4]
    said("Over 40 searches it finds 0.800 on average, random 0.785. The grid, always the same, is")
    said("hardly worse than TPE: 0.795.")
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


H100 = "nvidia-h100"
NAMES = ["random", "tpe-median", "tpe-hyperband"]


@cache
def found() -> pd.DataFrame:
    return search.trials(recordings.recorded_runs(H100, "search"))


def of(name: str) -> pd.DataFrame:
    return found()[found()["search"] == name].set_index("trial")


def test_sizes_of_the_recorded_search() -> None:
    said("An H100 has searched as well")
    said("a ResNet-18 on all crops, 1,024 a batch, six epochs, four fields, 16 trials each time")
    config = tuned.tuned()
    assert (config.model, config.batch_size, config.epochs) == ("resnet18_cifar", 1024, 6)
    assert config.batch_size * config.steps == 65_536 and len(tuned.SPACE) == 4
    assert found().groupby("search").size().to_dict() == dict.fromkeys([*NAMES, "seeds"], 16)
    said("There are 7,168 others, which that training had not looked at.")
    both = search.tested(recordings.recorded_runs(H100, "search"))
    assert {*both["test_images"]} == {7168} and config.val_images == 1024
    recorded = {run.config.script for run in recordings.recorded_runs(H100, "search")}
    assert recorded == {"train.py"}
    assert "H100" in found()["machine"].unique().item()


def test_what_pruning_saves() -> None:
    said("The median ended 11 of 16, and saved 32 % of the seconds")
    said("and 45 % of the training steps' joules.")
    said("Hyperband ended 12, most of them after one epoch: 45 % and 58 %.")
    sums = found().groupby("search")[["device_s", "joules"]].sum()
    saved = 100 * (1 - sums / sums.loc["random"])
    pruned = found()["state"].eq("pruned").groupby(found()["search"]).sum()
    assert pruned[NAMES].tolist() == [0, 11, 12]
    assert saved.loc["tpe-median"].round().tolist() == [32, 45]
    assert saved.loc["tpe-hyperband"].round().tolist() == [45, 58]
    ended = of("tpe-hyperband").query("state == 'pruned'")["epochs"]
    assert (ended == 1).mean() > 0.5
    said("Of a whole trial's 9.7 seconds about 2.2 are its start")
    whole = of("random")["device_s"].mean()
    one = of("tpe-hyperband").query("epochs == 1")["device_s"].mean()
    said("after one epoch takes 3.5 seconds, a whole one 9.7: so an epoch is 1.25", BEHIND)
    epoch = (whole - one) / 5
    assert (round(whole, 1), round(one, 1), round(epoch, 2)) == (9.7, 3.5, 1.25)
    assert round(one - epoch, 1) == 2.2


def test_who_is_slow_at_first_may_end_best() -> None:
    said("It was ended after one epoch, at 0.265, and would have come to 0.740. Its warm-up takes")
    said("49 of the epoch's 64 updates")
    third = {name: of(name).loc[3] for name in NAMES}
    assert third["tpe-hyperband"]["state"] == "pruned" and third["tpe-hyperband"]["epochs"] == 1
    assert round(third["tpe-hyperband"]["val_top1"], 3) == 0.265
    assert {round(third[name]["val_top1"], 3) for name in NAMES[:2]} == {0.740}
    assert {each["lr_warmup"] for each in third.values()} == {49} and tuned.tuned().steps == 64
    said(
        "Trials 0 to 3 have the same values in all three searches, and trial 3 came out best in the"
    )
    values = [of(name).loc[:3, [*tuned.SPACE]] for name in NAMES]
    assert values[0].equals(values[1]) and values[0].equals(values[2])
    for name in NAMES[:2]:
        assert of(name)["val_top1"].idxmax() == 3
    said("the four trials that ended best were 9th to 13th of 16 after one epoch")
    told = search.epochs(recordings.recorded_runs(H100, "search")).query("search == 'random'")
    places = told[told["epoch"] == 1].set_index("trial")["val_top1"].rank(ascending=False)
    best = of("random")["val_top1"].nlargest(4).index
    assert sorted(places[best]) == [9, 11, 12, 13]


def test_what_matters() -> None:
    said("The learning rate explains 57 % of the differences, weight decay 26 %, the others less")
    runs = recordings.recorded_runs(H100, "search")
    shares = search.importance([run for run in runs if run.config.rung.startswith("random")])
    assert [*shares.index[:2]] == ["lr", "weight_decay"]
    assert [round(100 * share) for share in shares[:2]] == pytest.approx([57, 26], abs=2)
    assert (shares[2:] < 0.1).all()


def test_what_it_cost() -> None:
    said("Random and TPE found the same: trial 3, drawn before TPE had anything to learn from.")
    assert taking.RANDOM_FIRST > 3
    costs = search.costs(found()).set_index("search")
    assert costs.loc["random", "best"] == costs.loc["tpe-median", "best"]
    said(
        "Per kilojoule of its training steps the median brought 1.8 times what whole trainings did."
    )
    assert (
        round(costs.loc["tpe-median", "gain_per_kj"] / costs.loc["random", "gain_per_kj"], 1) == 1.8
    )
    said("Two of the recorded ones gained 0.075.")
    assert (costs.loc[NAMES, "gain"].round(3) == 0.075).sum() == 2


def test_what_luck_brings() -> None:
    values = of("seeds")["val_top1"]
    said("Their mean is 0.478, and the best has 0.506: 0.028 for nothing.")
    assert (round(values.mean(), 3), round(values.max(), 3)) == (0.478, 0.506)
    assert round(values.max() - values.mean(), 3) == 0.028
    said("Here a standard deviation is 0.016.")
    assert round(values.std(), 3) == 0.016
    said("counts 1,024 images at an accuracy of 0.478 is off by 0.016 by chance")
    assert round((0.478 * 0.522 / 1024) ** 0.5, 3) == 0.016
    said("0.0164 in all, of which counting 1,024 images alone would bring 0.0156", BEHIND)
    assert (round(values.std(), 4), round((0.478 * 0.522 / 1024) ** 0.5, 4)) == (0.0164, 0.0156)
    said("and the seeds, each with images of its own, spread hardly more than that.")
    assert 1 < values.std() / (0.478 * 0.522 / 1024) ** 0.5 < 1.1


def test_what_differs_among_seeds_and_within_a_search() -> None:
    said("Sixteen times the same settings, two epochs each; only the seed differs. It draws the")
    said("first weights, the order of the images, and which 1,024 crops validate.")
    configs: dict[str, list[Config]] = {}
    for run in recordings.recorded_runs(H100, "search"):
        configs.setdefault(run.config.rung.rpartition("-")[0], []).append(run.config)
    equal = configs.pop("seeds")
    assert len({replace(each, seed=0, rung="any") for each in equal}) == 1
    assert sorted(each.seed for each in equal) == [*range(16)] and equal[0].epochs == 2
    some, other = ({*to_validate(range(8192), each).indices} for each in equal[:2])
    assert len(some) == len(other) == 1024 and len(some & other) < 256
    said("their trials have six epochs and one seed, so all validate on the same images")
    for name in NAMES:
        assert {(each.seed, each.epochs) for each in configs[name]} == {(0, 6)}
    said("What is easy or hard about those is much the same for all, and cancels in a gain.")
    both = search.tested(recordings.recorded_runs(H100, "search")).query("val_top1 > 0.6")
    both = both[both["search"] == "random"]
    chance = (both["val_top1"] * (1 - both["val_top1"]) / 1024).mean() ** 0.5
    assert (both["test_top1"] - both["val_top1"]).std() < chance / 2
    said("with three other seeds. A seed gives both the same order and the same images")


def test_what_is_left_of_it() -> None:
    both = search.tested(recordings.recorded_runs(H100, "search"))
    equal = both[both["search"] == "seeds"]
    best = equal.loc[equal["val_top1"].idxmax()]
    said("Of 0.028 there are 0.012 left.")
    assert round(best["test_top1"] - equal["test_top1"].mean(), 3) == 0.012
    said("On 7,168 images the same trainings spread by 0.0086.", BEHIND)
    assert round(equal["test_top1"].std(), 4) == 0.0086
    said("Of a gain of 0.075, 0.067 hold on images that the search had not looked at: less is lost")
    for name in NAMES[:2]:
        rows = both[both["search"] == name].set_index("trial")
        best = rows.loc[rows["val_top1"].idxmax()]
        gains = [round(best[each] - rows.loc[0, each], 3) for each in ("val_top1", "test_top1")]
        assert gains == [0.075, 0.067]
    said(
        "each trial above 0.6 has 0.010 to 0.028 more on the rest, trial 0 for instance 0.687",
        BEHIND,
    )
    rows = both[both["search"] == "random"].set_index("trial")
    assert rows.loc[0, ["val_top1", "test_top1"]].astype(float).round(3).tolist() == [0.665, 0.687]
    more = (rows["test_top1"] - rows["val_top1"])[rows["val_top1"] > 0.6]
    assert (round(more.min(), 3), round(more.max(), 3)) == (0.010, 0.028)
