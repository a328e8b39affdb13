"""The check of a learner's mixup and CutMix, from the functions without a training."""

import re
from pathlib import Path

import pytest
from check_helpers import SOLVED, TEXT, verdicts

from course.checks import exercises
from course.checks.verdict import PASSED, UNMEASURABLE, check
from course.config import rung
from course.runs.recordings import recorded_runs
from labs.augmentation import mixing_checks as mixing

pytestmark = pytest.mark.slow


def faults(text: str, name: str) -> list[str]:
    return [*mixing.mixing(text, rung(name, quick=True))]


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_solution_and_open_todo(name: str) -> None:
    assert faults(SOLVED, name) == []
    (fault,) = faults(exercises.render(TEXT, {*exercises.names(TEXT)} - {name}), name)
    assert fault.startswith(f"`{name}(…)`: the images come back as they were")


def test_a_recorded_run_is_checked_by_its_script(runs_root: Path, tmp_path: Path) -> None:
    runs = {run.config.rung: run for run in recorded_runs("nvidia-h200", "augmentation")}
    run, before = runs["cutmix-raw"], runs["dataloader-raw"]
    done = check("cutmix", run, against=before)  # of the solution: exercises/ has it open
    assert verdicts(done)["correct"] == UNMEASURABLE and verdicts(done)["mechanism"] == PASSED
    script = tmp_path / "train.py"
    script.write_text(SOLVED)
    done = check("cutmix", run, against=before, script=str(script))
    assert verdicts(done)["correct"] == verdicts(done)["mechanism"] == PASSED
    assert "on this machine's CPU" in repr(done)


RESULTS = {
    "    return images": r"must return two tensors: return images, labels",
    "    return images.half(), labels": r"images of shape .* come back as .* torch.float16",
    "    return images, labels.argmax(1)": r"labels of shape \(64, 64\) in .* come back as",
    "    return 1 / 0": r"`mixup\(…\)` fails on 64 images of 64 × 48 pixels: ZeroDivisionError",
}


@pytest.mark.parametrize("line", RESULTS)
def test_a_wrong_result_is_named(line: str) -> None:
    head, tail = SOLVED.split("def mixup(")
    tail = tail.replace("    return images, labels", line, 1)
    (fault,) = faults(f"{head}def mixup({tail}", "mixup")
    assert re.search(RESULTS[line], fault), fault
