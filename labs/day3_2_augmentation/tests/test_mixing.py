"""What is said of a learner's mixup and CutMix: without a training, from the functions alone."""

import re
from pathlib import Path

import numpy as np
import pytest
from answers import day3
from check_helpers import SOLVED, TEXT, text_of, verdicts

from course.checks import exercises
from course.checks.verdict import PASSED, check
from course.config import rung
from course.runs.recordings import recorded_runs
from labs.day3_2_augmentation import mixing_checks as mixing

pytestmark = pytest.mark.slow
NAMES = {12: "mixup", 13: "cutmix"}


def told(text: str, name: str) -> list[str]:
    return [*mixing.mixing(text, rung(name, quick=True))]


@pytest.mark.parametrize("name", NAMES.values())
def test_the_solution_mixes(name: str) -> None:
    assert told(SOLVED, name) == []


@pytest.mark.parametrize("todo", NAMES)
def test_an_open_todo_mixes_nothing(todo: int) -> None:
    (said,) = told(exercises.render(TEXT, todo - 1), NAMES[todo])
    assert said.startswith(f"`{NAMES[todo]}(…)`: the images come back as they were")


@pytest.mark.parametrize("label", day3.WRONG)
def test_a_mistake_is_named(label: str) -> None:
    answer = day3.WRONG[label]
    (said,) = told(text_of(answer), NAMES[answer.todo])
    assert re.search(answer.said, said), said


@pytest.mark.parametrize("label", day3.RIGHT)
def test_another_right_way_is_taken(label: str) -> None:
    answer = day3.RIGHT[label]
    assert told(text_of(answer), NAMES[answer.todo]) == []


@pytest.mark.parametrize(
    "edit, said",
    [
        ("    return images, labels", r"must give back two tensors: return images, labels"),
        ("    return images.half(), labels", r"images of shape .* come back as .* torch.float16"),
        ("    return images, labels.argmax(1)", r"labels of shape \(64, 64\) in .* come back as"),
        ("    return 1 / 0", r"it fails on 64 images: ZeroDivisionError"),
    ],
)
def test_what_is_no_mixture_is_told(edit: str, said: str) -> None:
    head, tail = SOLVED.split("def mixup(")
    edit = "    return images" if "two tensors" in said else edit
    tail = tail.replace("    return images, labels", edit, 1)
    (found,) = told(f"{head}def mixup({tail}", "mixup")
    assert re.search(said, found), found


def test_a_function_that_is_gone_is_missed() -> None:
    text = SOLVED.replace("def mixup(", "def blend(")
    assert told(text, "mixup") == ["there is no function mixup in the script: the loop calls it"]


def test_the_callers_random_numbers_are_left_alone() -> None:
    import torch

    before = torch.get_rng_state()
    mixing._found.cache_clear()
    told(SOLVED, "mixup")
    assert torch.equal(before, torch.get_rng_state())


def test_distance_of_distributions() -> None:
    uniform = np.linspace(0, 1, 1001)
    assert mixing._distance(uniform, uniform) == 0
    assert mixing._distance(uniform, np.zeros(10)) == pytest.approx(1, abs=0.01)
    assert mixing._distance(uniform, uniform / 2) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("name", NAMES.values())
def test_the_check_passes_on_a_recorded_gpu(name: str, runs_root: Path) -> None:
    runs = {run.config.rung: run for run in recorded_runs("nvidia-h200", "augmentation")}
    done = check(f"day3.{name}", runs[f"{name}-raw"], against=runs["dataloader-raw"])
    assert verdicts(done)["correct"] == verdicts(done)["mechanism"] == PASSED
