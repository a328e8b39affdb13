"""Lab 4.5 says of stopped and repeated trainings what records, sources and sums say."""

from math import sqrt

from claims import text_of, text_of_quiz

from course.days.practice.checks import ASKED_IN, CHANGING, EVERY, KILLED_AFTER
from course.jobs.supervise import SAVE_S
from course.runs.recordings import recorded_runs
from course.topics import practice

TEXT, QUIZ = text_of("day4_5_practice"), text_of_quiz("day4_5")
# Table 5 of arXiv:2407.21783: unexpected interruptions in 54 days, on 16,384 GPUs.
DAYS, ACCIDENTS, GPUS = 54, 419, 16384


def said(words: str, where: str = TEXT) -> None:
    assert words in where, words


def test_accidents_and_the_best_distance() -> None:
    said("on 2,048 nodes of 8 GPUs, 419 accidents stopped it in 54 days")
    nodes = GPUS // 8
    assert nodes == 2048
    said("one node of your own breaks every 264 days")
    assert round(nodes * DAYS / ACCIDENTS) == 264
    said("A **[checkpoint](../docs/glossary.md#checkpoint)** that takes a minute")
    said("On 2,048 nodes, every 19 minutes, and a tenth of the time is lost")
    best = sqrt(2 / 60 * DAYS * 24 / ACCIDENTS)  # Young's, in hours
    assert round(60 * best) == 19
    assert round(practice.lost(1, best, nodes, 264), 1) == 0.1
    said("A cheap checkpoint may come more often, so it saves twice")
    cheap = best / sqrt(4)  # a quarter of the minutes: half of the distance, half of the loss
    assert (
        abs(practice.lost(0.25, cheap, nodes, 264) / practice.lost(1, best, nodes, 264) - 0.5)
        < 0.01
    )


def test_what_the_checks_train() -> None:
    said("The check trains eight steps in fp16, and saves after 3 and 6.")
    steps = CHANGING["epochs"] * CHANGING["steps"]
    assert (steps, CHANGING["precision"]) == (8, "fp16")
    assert [at for at in range(1, 9) if at % EVERY == 0] == [3, 6] and KILLED_AFTER == 5
    said("waits for eight seconds")
    assert SAVE_S["local"] == 8
    assert EVERY <= ASKED_IN, "so that something is saved before it is asked"
    said("Saved was every 4th step")
    said("Here both save every fourth step")
    assert practice.small("async_save").save_every == practice.small().save_every == 4


def test_sums_and_crops() -> None:
    said("A million numbers, added in four orders")
    assert len(practice.sums()) == 5  # and in fp64
    said("with 0, 1 and 2 workers")
    assert [*practice.crops().index] == [0, 1, 2]


def test_what_an_h100_and_an_h200_have_alike() -> None:
    pair = [recorded_runs(f"nvidia-{name}", "throughput") for name in ("h100", "h200")]
    table = practice.machines(*pair).set_index(["rung", "precision"])
    assert (table["steps"] == 60).all()
    said("`amp` is the same on both to the last step")
    assert (table.loc["amp", "same_steps"] == 60).all() and (table.loc["amp", "apart"] == 0).all()
    said("With channels last the losses part after 53 steps, in fp16 after 22")
    assert table.loc[("channels_last", "bf16"), "same_steps"] == 53
    assert table.loc[("channels_last", "fp16"), "same_steps"] == 22


def h100(word: str) -> list:
    return [run for run in recorded_runs("nvidia-h100", "practice") if word in run.config.rung]


def test_what_saving_costs_an_h100() -> None:
    said("Every eight steps.")
    costs = practice.costs(h100("saving")).set_index(["model", "saved", "every"])
    said("0.36 seconds for ResNet-50, 3.2 for CoAtNet-3")
    whole = costs.loc[(slice(None), "torch.save", 8), "save_ms"] / 1e3
    assert whole.round(2).tolist() == [3.21, 0.36]
    said("`async_save` leaves 2.4 of the latter, and nothing is gained for the former")
    thread = costs.loc[(slice(None), "async_save", 8), "save_ms"] / 1e3
    assert thread.round(1).tolist() == [2.4, 0.4] and thread.iloc[1] > whole.iloc[1]
    said("A third run saves every 24 steps")
    seldom = costs.loc[("coatnet_3_224", "async_save", 24), "save_ms"] / 1e3
    assert abs(seldom / thread.iloc[0] - 1) < 0.05
    said("3.2 seconds each half an hour are 0.2 %")
    assert round(100 * whole.iloc[0] / 1800, 1) == 0.2
    said("with AdamW's two numbers for each weight is 2 GB")
    assert round(3 * 4 * 167 / 1e3) == 2  # millions of weights: held by the claims of lab 4.1
    said("The mean shows the cost; the **median hides it**")
    steps = {run.config.rung: run.record.step_s for run in h100("saving")}
    assert abs(steps["saving-torch-save"] / steps["saving-never"] - 1) < 0.01
    assert costs.loc[("resnet50", "torch.save", 8), "cost"] > 0.5


def test_what_repeatable_costs_an_h100() -> None:
    twice = practice.repeats(recorded_runs("nvidia-h100", "practice")).set_index("repeatable")
    said("An H100 trained twice without it and twice with it, in turn")
    assert len(h100("fp16-first")) == len(h100("fp16-again")) == 2
    said("It cost 13 %, and brought nothing: without it, all 60 losses were the same, too")
    assert round(1 - twice.loc[True, "ratio"], 2) == 0.13
    assert (twice["same_steps"] == 60).all() and (twice["apart"] == 0).all()
    assert twice["spread"].max() < 0.01  # far less than what it cost


def test_the_quiz_counts() -> None:
    said("You save every 500 steps", QUIZ)
    said("499 of 500 steps do not save", QUIZ)
