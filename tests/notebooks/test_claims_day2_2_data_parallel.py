"""Lab 2.2: what its text and its quiz say of numbers, held against records and arithmetic."""

import math
import re

from cases import for_all
from claims import text_of, text_of_quiz
from torch.distributed import constants
from torch.utils.data import DistributedSampler

from course.config import Config, rung
from course.days.day2 import FULL, TRAINED
from course.runs import failures, recordings
from course.runs.run import PROJECT
from course.topics.scaling import shares
from course.topics.supercomputer.history import training_times
from course.training import models

TEXT, QUIZ = text_of("day2_2_data_parallel"), text_of_quiz("day2_2")


def test_three_trainings_on_p100s_took_nearly_the_same_gpu_hours() -> None:
    assert "they took 29 hours, 60 minutes and 15 minutes" in TEXT
    assert "All three took nearly the same number of GPU hours" in TEXT
    found = training_times().query("device == 'Tesla P100'")
    assert found["minutes"].tolist() == [29 * 60, 60, 15]
    assert found["device_hours"].max() / found["device_hours"].min() < 1.15


def test_local_ranks_of_a_second_node() -> None:
    assert "On the second of two nodes with four GPUs, ranks 4 to 7 have local ranks 0 to 3" in TEXT
    assert [rank % 4 for rank in (4, 5, 6, 7)] == [0, 1, 2, 3]
    assert "Ranks 8 to 15 run on the second node" in QUIZ and "rank 11 has local rank 3" in QUIZ
    assert 11 % 8 == 3


def test_who_takes_which_image() -> None:
    assert "Here are 24 on two ranks, four a step" in TEXT
    counts = shares(24, ranks=2, share=4).groupby(["epoch", "image"]).size()
    assert "At the top, both epochs take every image once" in TEXT and set(counts) == {1}
    assert "epoch 1 repeats the order of epoch 0" in TEXT
    forgotten = shares(24, ranks=2, share=4, set_epoch=False)
    first, second = (forgotten[forgotten["epoch"] == epoch]["image"].tolist() for epoch in (0, 1))
    assert first == second
    assert "repeats one of 25 images to make equal shares; its column has two colours" in TEXT
    table = shares(25, ranks=2, share=4, epochs=1)
    ranks = table.groupby("image")["rank"].nunique()
    assert sorted(ranks) == [1] * 24 + [2]


def test_what_two_ranks_on_a_cpu_send_in_a_step() -> None:
    assert "also send each other 45 MB in every step" in TEXT
    model = models.create(rung("device", quick=True, **TRAINED).model, 16)
    assert round(4 * models.parameter_count(model) / 1e6) == 45


def test_the_recorded_pair_was_held_by_loading() -> None:
    assert "did not keep the device busy: it decodes JPEG files in one thread" in TEXT
    one, two = (
        recordings.answer("nvidia-h200-x4", rung("device", **TRAINED | FULL), gpus)
        for gpus in (1, 2)
    )
    assert one.config.workers == 0 and one.record.load_s / one.record.step_s > 0.85
    assert two.record.images_per_s / one.record.images_per_s > 3


def test_a_sampler_repeats_validation_images() -> None:
    for count in ("61 validation images", '`"60"`, `"61"` or `"62"`'):
        assert count in TEXT
    assert TRAINED["val_images"] == 61
    assert sum(len(DistributedSampler(range(61), 2, rank)) for rank in (0, 1)) == 62
    assert "With 50,000 images on 1,024 ranks, 176 would" in TEXT
    assert 1024 * math.ceil(50_000 / 1024) - 50_000 == 176
    assert "50,001 images do not divide by 8" in QUIZ and 50_001 % 8


def test_timeouts() -> None:
    assert "PyTorch by itself waits 30 minutes with gloo and 10 with NCCL" in TEXT
    assert "by default 30 minutes with gloo and 10 with NCCL" in QUIZ
    assert '"running\\" for 8 minutes' in QUIZ  # before either has ended it
    assert constants.default_pg_timeout.total_seconds() == 30 * 60
    if (of_nccl := constants.default_pg_nccl_timeout) is not None:  # None in a build without it
        assert of_nccl.total_seconds() == 10 * 60
    assert "shortens it: to 60 seconds in the course, to 10 in this run" in TEXT
    assert Config().collective_timeout_s == 60
    notebook = (PROJECT / "notebooks" / "day2_2_data_parallel.ipynb").read_text()
    assert re.search(r"rung=\W+hanging\W+, collective_timeout_s=10\)", notebook)


def test_nccls_words_are_those_of_the_kept_logs() -> None:
    logs = PROJECT / "tests" / "golden" / "nccl_hang"
    found = [failures.hang((logs / f"rank-{rank}.err").read_text(), rank) for rank in (0, 1)]
    said = ", ".join(f"rank {hang.rank} in {hang.collective}" for hang in found)
    assert said in TEXT


@for_all("number", [1, 2, 3, 4, 5])
def test_each_section_that_the_quiz_needs_stands_before_it(number: int) -> None:
    assert f"## {number}. " in TEXT.partition("While it runs, five questions")[0]
    assert QUIZ.count("[[questions]]") == 5
