"""Lab 2.1 says what the records say."""

import math
import tomllib
from collections.abc import Callable
from functools import cache

import pandas as pd
import pytest
from claims import text_of, text_of_quiz

from course.config import LADDER, rung
from course.data import default_set
from course.labs.quizzes import find
from course.runs import recordings
from course.runs.run import PROJECT, Run
from course.topics.loading import feeding

TEXT, QUIZ = text_of("day2_1_dataloader"), text_of_quiz("day2_1")
CORES = 16


def said(words: str) -> None:
    assert words in TEXT


@cache
def files(workers: int) -> Run:
    """The H100 fed from files."""
    (run,) = (
        run
        for run in recordings.recorded_runs("nvidia-h100")
        if run.config.rung == "channels_last"
        and run.config.data == "default"
        and run.config.workers == workers
    )
    return run


@cache
def h200() -> Run:
    """One H200 fed from files by 8 workers."""
    (run,) = (
        run
        for run in recordings.recorded_runs("nvidia-h200-x4", "scaling")
        if run.config.rung == "dataloader" and run.launched["gpus"] == 1
    )
    return run


@cache
def needed() -> pd.Series:
    """Cores that feed the H100, by rung and precision."""
    table = feeding.appetites("nvidia-h100").set_index(["rung", "precision"])["images_per_s"]
    return table.map(lambda speed: feeding.cores_needed(speed, feeding.loaded_by_one(files(0))))


@cache
def trial(workers: int) -> pd.Series:
    return feeding.trials([files(workers)]).iloc[0]


def measured(run: Run) -> pd.DataFrame:
    return run.steps[run.config.warmup_steps :]


def test_waits_for_nine_tenths() -> None:
    said("made a recorded GPU more than four times as fast")
    said("the same GPU spends nine tenths of its time waiting")
    speeds = feeding.appetites("nvidia-h100").set_index(["rung", "precision"])["images_per_s"]
    assert 4 < speeds["channels_last", "bf16"] / speeds["device", "fp32"] < 5
    assert round(trial(0).load_ms / trial(0).step_ms, 1) == 0.9


def test_first_section_shows_the_last_rung_of_day_1() -> None:
    said("with Day 1's last rung, bf16 and channels last, and with JPEG files")
    said("it loads 64 files")
    config = files(0).config
    assert (config.precision, config.channels_last, config.batch_size) == ("bf16", True, 64)
    assert config.data == "default"


def test_cores_that_feed_it() -> None:
    said("feed this H100 at 3,980 images/s, its speed in bf16 with channels last")
    said("In fp32, 5 cores are enough. With channels last in bf16 it takes 21, and with")
    said("and with `torch.compile` 30.")
    speeds = feeding.appetites("nvidia-h100").set_index(["rung", "precision"])["images_per_s"]
    assert round(speeds["channels_last", "bf16"]) == 3980
    assert needed()["device", "fp32"] == 5
    assert needed()["channels_last", "bf16"] == 21
    assert needed()["compile", "bf16"] == 30


def test_machine_of_the_h100() -> None:
    said("what the H100's machine has: 16 cores")
    said("The H100 of section 1 had 16 cores and ran with no workers, 4, 8 and 16")
    for workers in (0, 4, 8, 16):
        assert files(workers).record.hardware["cores"] == CORES


def test_jean_zay() -> None:
    said("On Jean Zay it is 10 with a V100 and 8 with an A100")
    sites = tomllib.loads((PROJECT / "course/jobs/sites.toml").read_text())
    assert sites["jean-zay-v100"]["cpus_per_gpu"] == 10
    assert sites["jean-zay-a100"]["cpus_per_gpu"] == 8


def test_the_rung_changes_one_field() -> None:
    said("The rung changes one field")
    before, after = (vars(LADDER[name]) for name in ("channels_last", "dataloader"))
    assert {name for name in after if after[name] != before[name]} == {"rung", "workers"}
    before, after = (vars(rung(name, quick=True)) for name in ("channels_last", "dataloader"))
    assert {name for name in after if after[name] != before[name]} == {"rung", "workers"}
    said("as the config has it already")
    assert rung("dataloader").drop_last


def test_an_epoch_of_imagenet() -> None:
    said("With ImageNet's 20,000 steps of 64 images an epoch")
    assert round(1_281_167 / 64, -3) == 20_000


def test_bursts_of_the_h200() -> None:
    said("Three [epochs](../docs/glossary.md#epoch) of an H200 with 8 workers, persistent, pinned")
    config = h200().config
    assert (config.workers, config.persistent_workers, config.pin_memory) == (8, True, True)
    assert config.non_blocking and config.batch_size == 64
    said("The H200 waits for 400 to 500 ms at an epoch's first step")
    said("may wait again from the ninth on, where the second round of its 8 workers begins")
    steps = measured(h200())
    nth = steps.groupby("epoch").cumcount()
    first = steps["load_s"][nth == 0]
    assert first.min() > 0.35 and first.max() < 0.55
    ninth, before = steps["load_s"][nth == 8], steps["load_s"][nth.between(1, 7)]
    assert ninth.median() > 20 * before.median() and (ninth > before.max()).sum() > len(ninth) / 2
    said("Its median step makes 2,042 images/s, all steps together 929.")
    assert round(h200().record.images_per_s) == 2042
    assert round(feeding.trials([h200()]).iloc[0].images_per_s) == 929


def test_left_over() -> None:
    said("this run keeps its last batch of 124 images")
    images = len(default_set.PHOTOGRAPHS) * default_set.Recipe().train_per_class
    assert images % 300 == 124


def test_shared_memory() -> None:
    said("[64 MB](https://docs.docker.com/reference/cli/docker/container/run/)")
    said("Two batches of 64 images are 77 MB.")
    assert round(2 * 64 * 3 * 224 * 224 * 4 / 1e6) == 77


def test_beginnings() -> None:
    said("Two waits remain, however many workers there are")
    said("An epoch has 16 batches here, and new workers are started for each")
    said("its first step waits for 460 to 770 ms")
    waits = [files(w).steps.groupby("epoch")["load_s"].first() for w in (4, 8, 16)]
    assert {len(files(w).steps) for w in (4, 8, 16)} == {2 * 16}
    assert not any(files(w).config.persistent_workers for w in (4, 8, 16))
    ends = min(map(min, waits)), max(map(max, waits))
    assert [round(1e3 * end, -1) for end in ends] == [460, 770]
    said("A million images make one such beginning in 15,625 steps.")
    assert 1_000_000 / 64 == 15_625


def test_copies() -> None:
    said("The median step waits for 16 to 20 ms.")
    ms = [1e3 * measured(files(workers))["load_s"].median() for workers in (4, 8, 16)]
    assert (round(min(ms)), round(max(ms))) == (16, 20)
    assert ms == [1e3 * files(workers).record.load_s for workers in (4, 8, 16)]  # as printed
    assert not any(files(w).config.pin_memory or files(w).config.non_blocking for w in (4, 8, 16))
    said("On the H200 of section 4, from pinned memory, it is 1 ms.")
    assert round(1e3 * measured(h200())["load_s"].median()) == 1
    assert round(1e3 * h200().record.load_s) == 1


def test_all_lie_below_the_line() -> None:
    said("All three diamonds lie below it.")
    core = feeding.loaded_by_one(files(0))
    assert all(trial(workers).images_per_s < workers * core for workers in (4, 8, 16))
    said("when a core loads about 200")
    assert round(core, -2) == 200


def test_crowding() -> None:
    said("reach 774 images/s, where 8 workers reach 960")
    assert round(trial(16).images_per_s) == 774 and round(trial(8).images_per_s) == 960


def computing(workers: int) -> float:
    steps = measured(files(workers))
    return float((steps["step_s"] - steps["load_s"]).mean())


def test_16_workers_slow_python_down() -> None:
    assert computing(16) > 1.1 * computing(8)


SUMS: list[tuple[str, Callable[[], bool]]] = [
    ("2,400 ÷ 150 = 16", lambda: feeding.cores_needed(2400, 150) == 16),
    ("Two workers supply 300 images/s", lambda: 2 * 150 == 300),
    ("They grow by about 5 %.", lambda: round(100 * (330 / 315 - 1)) == 5),
    ("Nine tenths of the step are work for one core", lambda: round(300 / 330, 1) == 0.9),
    ("3,200: the median step takes 20 ms", lambda: 64 / 0.02 == 3200),
    ("356: the slowest step sets the pace", lambda: round(64 / 0.18) == 356),
    ("7 × 20 + 180 = 320 ms", lambda: 7 * 20 + 180 == 320),
    ("1,600: the mean step takes 40 ms", lambda: math.isclose(64 / (0.320 / 8), 1600)),
]


@pytest.mark.parametrize("words, holds", SUMS, ids=[words for words, _ in SUMS])
def test_sums_of_the_quiz(words: str, holds: Callable[[], bool]) -> None:
    assert words in QUIZ and holds()


def test_the_quiz_says_which_questions_reach_ahead() -> None:
    said("Meanwhile, six questions. The last three reach ahead, to sections 4 and 6:")
    assert len(find("day2_1").questions) == 6


def test_length_gives_no_answer_away() -> None:
    questions = find("day2_1").questions
    longest = [max(each.choices, key=lambda choice: len(choice.text)).right for each in questions]
    assert sum(longest) <= 2
