"""Lab 2.1 says what the records say."""

import math
import tomllib
from collections.abc import Callable
from functools import cache

import pandas as pd
import torch
from cases import for_all
from claims import text_of, text_of_quiz

from course.config import LADDER, rung
from course.data import default_set
from course.data.loader import Drawing
from course.labs.quizzes import find
from course.runs import recordings
from course.runs.run import PROJECT, Run
from course.topics.loading import feeding

TEXT, QUIZ = text_of("day2_1_dataloader"), text_of_quiz("day2_1")
CORES = 16


def said(words: str) -> None:
    assert words in TEXT


@cache
def recorded(name: str) -> Run:
    """A run of the H200 that was recorded for its loading."""
    runs = recordings.recorded_runs("nvidia-h200", "loading")
    (run,) = (run for run in runs if run.config.rung == name)
    return run


@cache
def speeds() -> pd.Series:
    """What the H200 trains on synthetic images, by rung and precision."""
    return feeding.appetites("nvidia-h200").set_index(["rung", "precision"])["images_per_s"]


@cache
def needed() -> pd.Series:
    """Cores that feed the H200, by rung and precision."""
    core = feeding.loaded_by_one(recorded("channels_last"))
    return speeds().map(lambda speed: feeding.cores_needed(speed, core))


@cache
def trial(name: str) -> pd.Series:
    return feeding.trials([recorded(name)]).iloc[0]


def measured(run: Run) -> pd.DataFrame:
    return run.steps[run.config.warmup_steps :]


BY_WORKERS = {4: "four-workers", 8: "dataloader", 16: "sixteen"}  # of section 8


def test_waits_for_nine_tenths() -> None:
    said("Day 1 makes an H200 more than five times as fast")
    said("the same GPU spends nine tenths of its time waiting")
    assert 5 < speeds()["channels_last", "bf16"] / speeds()["device", "fp32"] < 6
    assert round(trial("channels_last").load_ms / trial("channels_last").step_ms, 1) == 0.9


def test_first_section_shows_the_last_rung_of_day_1() -> None:
    said("with Day 1's last rung, bf16 and channels last, and with JPEG files")
    said("it loads 256 files")
    config = recorded("channels_last").config
    assert (config.precision, config.channels_last, config.batch_size) == ("bf16", True, 256)
    assert (config.data, config.workers) == ("default", 0)


def test_cores_that_feed_it() -> None:
    said("feed this H200 at 4,677 images/s, its speed in bf16 with channels last")
    said("In fp32, 2 cores are enough. With channels last in bf16 it takes 10, and with")
    said("and with `torch.compile` 14.")
    assert round(speeds()["channels_last", "bf16"]) == 4677
    assert needed()["device", "fp32"] == 2
    assert needed()["channels_last", "bf16"] == 10
    assert needed()["compile", "bf16"] == 14


def test_machine_of_the_h200() -> None:
    said("what the H200's machine has: 16 cores")
    said("The H200 of section 1 has 16 cores, and ran with no workers, 4, 8 and 16")
    for name in ("channels_last", *BY_WORKERS.values()):
        assert recorded(name).record.hardware["cores"] == CORES
    for workers, name in BY_WORKERS.items():
        assert recorded(name).config.workers == workers


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


def test_an_epoch_of_imagenet() -> None:
    said("With ImageNet's 5,000 steps of 256 images an epoch")
    assert round(1_281_167 / 256, -3) == 5_000


def test_bursts() -> None:
    said("The second [epoch](../docs/glossary.md#epoch) of the H200 with 4 workers:")
    said("Every fourth step waits for 250 to 340 ms")
    second = recorded("four-workers").steps.query("epoch == 1")["load_s"].tolist()
    assert min(second[4::4]) > 0.25 and max(second[4::4]) < 0.34
    assert max(wait for nth, wait in enumerate(second) if nth % 4) < 0.06
    said("The median step makes 4,140 images/s, all steps together 1,928.")
    assert round(recorded("four-workers").record.images_per_s) == 4140
    assert round(trial("four-workers").images_per_s) == 1928


def test_left_over() -> None:
    said("This run keeps its last batch of 124 images")
    images = len(default_set.PHOTOGRAPHS) * default_set.Recipe().train_per_class
    assert images % 300 == 124


def test_an_epoch_goes_on_where_the_files_end() -> None:
    said("an epoch has as many batches as `steps` says")
    said("with `drop_last=False` an epoch ends with the files here, too")
    files = 1024
    assert [len(Drawing(range(files), images)) for images in (None, 1500)] == [files, 1500]
    assert rung("dataloader").drop_last


def test_shared_memory() -> None:
    said("[64 MB](https://docs.docker.com/reference/cli/docker/container/run/)")
    said("Seven batches of 64 images, as bytes, are 67 MB.")
    assert round(7 * 64 * 3 * 224 * 224 / 1e6) == 67


def test_bytes_and_floats() -> None:
    said("Floats are **four times the bytes**")
    assert torch.float32.itemsize == 4 * torch.uint8.itemsize
    said("makes an epoch of 56 steps at 2,476 images/s from floats and at 3,527 from bytes")
    said("The host takes 14.1 and 5.5 GiB")
    assert not recorded("floats").config.uint8 and recorded("sixteen").config.uint8
    for name, speed, gib in (("floats", 2476, 14.1), ("sixteen", 3527, 5.5)):
        second = recorded(name).steps.query("epoch == 1")
        assert len(second) == 56 and round(256 * 56 / second["step_s"].sum()) == speed
        assert round(trial(name).host_gib, 1) == gib


def test_beginnings() -> None:
    said("The first step of the second epoch waits for 680 to 840 ms")
    waits = [trial(name).next_epoch_ms for name in BY_WORKERS.values()]
    assert [round(end, -1) for end in (min(waits), max(waits))] == [680, 840]
    said("A million images make one such beginning in 3,906 steps")
    assert 1_000_000 // 256 == 3906
    said("so `images_per_s` leaves it out")
    for name in BY_WORKERS.values():
        assert recorded(name).config.warmup_steps > recorded(name).config.steps


def test_copies() -> None:
    said("With 4 and 8 workers the median step waits for 7 ms, the copy from ordinary memory.")
    said("With 16 it was pinned and non-blocking: 1 ms.")
    for workers, ms in ((4, 7), (8, 7), (16, 1)):
        run = recorded(BY_WORKERS[workers])
        assert round(1e3 * run.record.load_s) == ms
        assert run.config.pin_memory is run.config.non_blocking is (workers == 16)


def test_below_the_line_and_above() -> None:
    said("With 4 workers the H200 nearly reaches it, and with 8 it stays below")
    core = feeding.loaded_by_one(recorded("channels_last"))
    assert 0.9 < trial("four-workers").images_per_s / (4 * core) < 1
    assert 0.8 < trial("dataloader").images_per_s / (8 * core) < 0.9
    said("when a core loads about 510")
    assert round(core, -1) == 510
    said("16 workers make 16 batches in the 0.84 s of their first wait, so 4,860 images/s.")
    first = trial("sixteen").next_epoch_ms / 1e3
    assert round(first, 2) == 0.84 and round(16 * 256 / first, -1) == 4860
    said("a little more than the 4,677 that the network trains: it hardly waits, and reaches 4,543")
    assert round(trial("sixteen").images_per_s) == 4543 and trial("sixteen").load_ms < 2
    said("The compiled network of Day 3 trains 6,800")
    assert round(speeds()["compile", "bf16"], -2) == 6800


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


@for_all("words, holds", SUMS, ids=[words for words, _ in SUMS])
def test_sums_of_the_quiz(words: str, holds: Callable[[], bool]) -> None:
    assert words in QUIZ and holds()


def test_the_quiz_says_which_questions_reach_ahead() -> None:
    said("Meanwhile, six questions. The last three reach ahead, to sections 4 and 6:")
    assert len(find("day2_1").questions) == 6


def test_length_gives_no_answer_away() -> None:
    questions = find("day2_1").questions
    longest = [max(each.choices, key=lambda choice: len(choice.text)).right for each in questions]
    assert sum(longest) <= 2
