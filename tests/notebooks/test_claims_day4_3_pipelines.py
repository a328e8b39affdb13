"""Lab 4.3, pipelines: what its text and its quiz say of numbers, by formula and by records."""

import pandas as pd
import pytest
from claims import text_of, text_of_quiz

from course.runs.run import PROJECT, Run
from course.topics import parallel
from course.topics.parallel import timelines

TEXT, QUIZ = text_of("day4_3_model_parallel"), text_of_quiz("day4_3")
RECORDED = {name: run for name, run in parallel.recorded().items() if run.config.pipeline}


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    if not RECORDED:
        pytest.skip("no pipeline is recorded on several GPUs yet")
    return RECORDED


@pytest.fixture(scope="module")
def table(runs: dict[str, Run]) -> pd.DataFrame:
    return parallel.pipelines(runs)


def test_the_formula() -> None:
    assert "*p* − 1 are idle: 3 of 11" in TEXT
    assert parallel.bubble(4, 8) == pytest.approx(3 / 11)
    ideal = parallel.ideal("gpipe", 4, 8)
    assert "the last rank waits for 3 passes, the first for 3 on their way back" in TEXT
    last = ideal[ideal["rank"] == 3]
    assert last["begin_ms"].min() == 3  # forward passes
    first = ideal[ideal["rank"] == 0]
    back = first[first["what"] == "B"]["begin_ms"].min() - last["begin_ms"].iloc[8]
    assert back == pytest.approx(3 * 2)  # of backward, each twice as long
    assert "Equal stages would have 0.2" in TEXT and parallel.bubble(2, 4) == 0.2


def test_what_ranks_hold() -> None:
    assert "GPipe holds all *m*. 1F1B holds one for each rank from here to the end" in TEXT
    assert parallel.in_flight("gpipe", 4, 8)[0] == 8
    assert parallel.in_flight("1f1b", 4, 8) == [4, 3, 2, 1]


def test_interleaved_waits_half_as_long() -> None:
    assert "*two* stages of half the size, and waits half as long" in TEXT
    one, two = (parallel.ideal(name, 4, 8) for name in ("1f1b", "interleaved"))
    span, shorter = (each["end_ms"].max() for each in (one, two))
    waits, fewer = span * parallel.idle(one), shorter * parallel.idle(two)
    assert fewer == pytest.approx(waits / 2)


def test_weights_lie_behind() -> None:
    assert "Behind, two blocks have more than half of the weights" in TEXT
    blocks = parallel.pieces("coatnet_pico_rw_224", image_px=32, images=1).set_index("piece")
    held = blocks["weights_m"] / blocks["weights_m"].sum()
    assert held[["10", "11"]].sum() > 0.5 and held[["front", "0", "1", "2"]].sum() < 0.03


def test_the_quiz() -> None:
    assert "Of 19 turns instead of 7 there are 3 idle: 16 % instead of 43 %" in QUIZ
    assert round(parallel.bubble(4, 16), 2) == 0.16 and round(parallel.bubble(4, 4), 2) == 0.43
    assert "7 of 11 turns are idle then" in QUIZ
    assert parallel.bubble(8, 4) == pytest.approx(7 / 11)
    assert "Of the schedule's own bubble 6 % are left" in QUIZ
    assert round(parallel.bubble(2, 16), 2) == 0.06


def test_memory_follows_what_is_held(table: pd.DataFrame) -> None:
    assert "61 GiB under GPipe, 18 under 1F1B, and 12 with 16 micro-batches" in TEXT
    peaks = table["peak_gib"].round()
    assert peaks[["pipe-gpipe-8", "pipe-1f1b-8", "pipe-1f1b-16"]].tolist() == [61, 18, 12]


def test_speed_does_not_follow_the_bubble(runs: dict[str, Run], table: pd.DataFrame) -> None:
    assert "Two micro-batches have the largest, 29 %, and are fastest: 248 images/s" in TEXT
    ours = table[table.index.str.fullmatch(r"pipe-1f1b-\d+")]
    assert ours["measured"].idxmax() == "pipe-1f1b-2" == ours["images_per_s"].idxmax()
    assert round(ours.loc["pipe-1f1b-2", "measured"], 2) == 0.29
    rates = ours["images_per_s"].round()
    assert rates["pipe-1f1b-2"] == 248
    assert "where 16 reach 62" in TEXT and rates["pipe-1f1b-16"] == 62
    assert "takes 58, 31, 27 and 38 ms of 48, 24, 12 and 6 images" in TEXT
    every = [runs[f"pipe-1f1b-{count}"] for count in (2, 4, 8, 16)]
    assert [run.config.micro_batch for run in every] == [48, 24, 12, 6]
    took = [timelines.work(run).loc[(0, "F"), "ms"].round() for run in every]
    assert took == [58, 31, 27, 38]


def test_orders_and_cuts_at_8_micro_batches(runs: dict[str, Run], table: pd.DataFrame) -> None:
    assert "**zero bubble**, with its many small passes, is the slowest of four at 8" in TEXT
    names = [f"pipe-{name}-8" for name in ("gpipe", "1f1b", "interleaved", "zero_bubble")]
    rates = table["images_per_s"]
    assert rates[names].idxmin() == "pipe-zero_bubble-8"
    assert "**By GFLOP** is the best of three cuts here" in TEXT
    cuts = ["pipe-1f1b-8", "pipe-1f1b-8-cut-weights", "pipe-1f1b-8-cut-20"]
    assert rates[cuts].idxmax() == "pipe-1f1b-8"
    assert "By weights, rank 1 is idle for three quarters of the step" in TEXT
    step = parallel.timeline(runs["pipe-1f1b-8-cut-weights"])
    second = step[step["rank"] == 1]
    busy = (second["end_ms"] - second["begin_ms"]).sum() / step["end_ms"].max()
    assert round(busy, 2) == 0.25


def test_the_machine_that_is_named(runs: dict[str, Run]) -> None:
    assert "a batch of 96, recorded on two H100s" in TEXT
    for run in runs.values():
        assert "H100" in run.record.machine and run.record.gpus == 2
        assert run.config.batch_size == 96 and run.config.model == "coatnet_5_224"


def test_what_is_behind_the_lab(runs: dict[str, Run]) -> None:
    docs = " ".join((PROJECT / "docs" / "behind-the-labs.md").read_text().split())
    said = "stage 0 took 58 ms of 48 images, 31 of 24, 27 of 12 and 38 of 6"
    took = {
        run.config.micro_batch: round(timelines.work(run).loc[(0, "F"), "ms"])
        for name, run in runs.items()
        if name in {f"pipe-1f1b-{count}" for count in (2, 4, 8, 16)}
    }
    assert said in docs and took == {48: 58, 24: 31, 12: 27, 6: 38}
    assert "14 steps of which 6 are warm-up" in docs
    assert {(run.config.steps, run.config.warmup_steps) for run in runs.values()} == {(14, 6)}
