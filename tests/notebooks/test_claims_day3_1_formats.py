"""Lab 3.1 says what the records say."""

from collections.abc import Callable
from functools import cache

import pandas as pd
import pytest
from cases import for_all
from claims import text_of, text_of_quiz

from course.config import BEYOND, LADDER
from course.data import default_set
from course.data.formats import convert
from course.days.rehearsed import steps as rehearsals
from course.labs.quizzes import find
from course.runs import recordings
from course.runs.run import PROJECT, Run
from course.topics import formats
from course.topics.formats.disk import IMAGENET, SHARD_IMAGES
from course.topics.loading import feeding

TEXT, QUIZ = text_of("day3_1_formats"), text_of_quiz("day3_1")
MACHINE = "nvidia-h200"


def said(words: str) -> None:
    assert words in TEXT


@cache
def recorded(name: str) -> Run:
    """A run of the H200 that was recorded for its format."""
    (run,) = (
        run
        for run in recordings.recorded_runs(MACHINE, "formats")
        if run.config.rung == name and run.status == "ok"
    )
    return run


@cache
def trial(name: str) -> pd.Series:
    return feeding.trials([recorded(name)]).iloc[0]


def of_synthetic(name: str) -> int:
    """Percent of the speed on synthetic images."""
    return round(100 * trial(name).images_per_s / trial("synthetic").images_per_s)


def test_where_the_lab_begins() -> None:
    said("In lab 2.1, 16 cores kept up with an H200 that trains 4,677 images/s.")
    said("Compiled, the same network trains 6,663.")
    said("Fed from JPEG files by 15 workers on such cores, it reaches 5,310.")
    eats = feeding.appetites(MACHINE).set_index(["rung", "precision"])["images_per_s"]
    assert round(eats["channels_last", "bf16"]) == 4677
    assert round(trial("synthetic").images_per_s) == 6663
    assert round(trial("files").images_per_s) == 5310
    for name in ("files", "shards", "small", "raw", "gpu_decode"):
        assert recorded(name).record.hardware["cores"] - 1 == recorded(name).config.workers == 15
        assert recorded(name).config.compile and recorded(name).config.batch_size == 256


def test_openings() -> None:
    said("ImageNet has 1,281,167 training images")
    said("tar files of 1,250 images each")
    said("ImageNet has 141 GB")
    assert IMAGENET == 1_281_167 and SHARD_IMAGES == 1250
    assert round(IMAGENET * 110e3 / 1e9) == 141
    said("if an opening takes 1 ms")
    assert 1 in formats.opening([0.05, 0.5, 1, 5]).index


def test_images_of_the_disk() -> None:
    said("Here are 256 images' bytes")
    assert formats.measure_disk.__defaults__ == (256, 110, 0)


def test_shards_of_the_default_set() -> None:
    said("three workers of two ranks, on 13 tiny shards")
    assert (rehearsals.WORKERS, rehearsals.RANKS_READING, rehearsals.SHARDS) == (3, 2, 13)
    said("by shards: there are 16,")
    images = len(default_set.PHOTOGRAPHS) * default_set.Recipe().train_per_class
    assert images / convert.LEAST == 16
    said("There are 16 classes.")
    assert len(default_set.PHOTOGRAPHS) == 16
    said("1,000 images are 110 MB for *each* worker")
    assert 1000 * 110e3 == 110e6
    said("one of 1,000, a quarter of these images")
    assert round(4096 / 1000) == 4
    said("Four steps in a row there is one class only")
    assert default_set.Recipe().train_per_class / 16 == 4


@pytest.mark.slow
def test_space() -> None:
    said("`raw` takes 1.7 times the space of `files`, `small` about a quarter.")
    found = formats.costs(images=64)
    assert 0.23 < found.loc["small", "kb"] / found.loc["files", "kb"] < 0.3
    files = [path.stat().st_size for path in default_set.ensure().glob("train/*/*.jpg")]
    assert round(256 * 256 * 3 / (sum(files) / len(files)), 1) == 1.7


def test_shards_are_as_fast_as_files() -> None:
    said("`shards` are as fast as files: from a warm local disk an opening costs nothing")
    of_one = [feeding.loaded_by_one(recorded(f"{name}-alone")) for name in ("files", "shards")]
    assert 0.8 < of_one[0] / of_one[1] < 1.25
    assert 0.9 < trial("shards").images_per_s / trial("files").images_per_s < 1.1
    said("A file costs less than a member of a tar file")
    rates = formats.reading("solutions/train.py").set_index("way")["images_per_s"]
    assert rates["files, one by one"] > rates["shards, by your reader"]


def test_each_rung_changes_one_field() -> None:
    said("The five formats are five runs, alike but for one field.")
    for name in ("shards", "small", "gpu_decode"):
        before, after = vars(LADDER["dataloader"]), vars(BEYOND[name])
        assert {key for key in after if after[key] != before[key]} == {"rung", "format"}


def test_the_kernel_is_short() -> None:
    said("[kernel.py](../course/data/formats/kernel.py) has 60 lines")
    lines = (PROJECT / "course/data/formats/kernel.py").read_text().splitlines()
    assert round(len(lines), -1) == 60


def test_bytes_are_a_fifth_of_the_pixels() -> None:
    said("a fifth of the pixels' size")
    files = [path.stat().st_size for path in default_set.ensure().glob("train/*/*.jpg")]
    assert round(500 * 375 * 3 / (sum(files) / len(files))) == 5


def test_who_feeds_the_gpu() -> None:
    said("- **files** and **shards**: 80 and 75 % of the speed on synthetic images")
    assert (of_synthetic("files"), of_synthetic("shards")) == (80, 75)
    said("A 16th brings files to 86 %.")
    assert recorded("files-16").config.workers == 16 and of_synthetic("files-16") == 86
    said("- **small** and **raw** feed it: 98 %.")
    assert of_synthetic("small") == of_synthetic("raw") == 98
    said("With 8 workers `small` falls to 76 %, and with 4 `raw` falls to 80 %.")
    assert (of_synthetic("small-8"), of_synthetic("raw-4")) == (76, 80)
    said("- **gpu_decode**: 96 % from plain JPEG files, with 15 workers as with 4.")
    assert (of_synthetic("gpu_decode"), of_synthetic("gpu_decode-4")) == (96, 96)


def test_where_the_rest_goes() -> None:
    said("Synthetic images leave 38 ms of computing, and so does every format whose images workers")
    said("With `gpu_decode` computing takes 40 ms")
    said("which costs it 4 %")
    computes = {
        name: trial(name).step_ms - trial(name).load_ms
        for name in ("synthetic", "files", "files-16", "shards", "small", "raw", "gpu_decode")
    }
    assert round(computes["gpu_decode"]) == 40
    assert round(100 * computes.pop("gpu_decode") / computes["synthetic"]) == 104
    assert {round(ms) for ms in computes.values()} == {38}
    assert trial("files").step_ms - trial("synthetic").step_ms == pytest.approx(
        trial("files").load_ms, abs=0.5
    )
    said("What is left is one copy of the batch in every step.")
    for name in ("small", "raw"):
        assert 0.7 < trial(name).load_ms < 1.3  # 38.5 MB over PCI Express, 50 GB/s


SUMS: list[tuple[str, Callable[[], bool]]] = [
    ("1,000,000 × 2 ms ÷ 8 = 250 s", lambda: 1_000_000 * 0.002 / 8 == 250),
    ("a quarter of a second", lambda: 1000 * 0.002 / 8 == 0.25),
    ("2 × 4 = 8 readers, and 16 ÷ 8 = 2", lambda: 16 / (2 * 4) == 2),
    ("6,000 ÷ 400 = 15, and 6,000 ÷ 1,000 = 6", lambda: (6000 / 400, 6000 / 1000) == (15, 6)),
    ("500 × 375 × 3 bytes are 562.5 kB", lambda: 500 * 375 * 3 / 1e3 == 562.5),
]


@for_all("words, holds", SUMS, ids=[words for words, _ in SUMS])
def test_sums_of_the_quiz(words: str, holds: Callable[[], bool]) -> None:
    assert words in QUIZ and holds()


def test_the_quiz_has_as_many_questions_as_the_lab_says() -> None:
    said("Meanwhile, five questions:")
    questions = find("day3_1").questions
    assert len(questions) == 5
    longest = [max(each.choices, key=lambda choice: len(choice.text)).right for each in questions]
    assert sum(longest) <= 2
