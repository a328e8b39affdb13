"""Answers that nobody named beforehand: no wrong one passes, no right one fails.

All are trained for real, on a network and images small enough to train them in one process, and in
one pair of ranks.
"""

from pathlib import Path

import pytest
from answers import RIGHT, UNSEEN, WRONG, Answer
from check_helpers import SOLVED, train_ranks
from job_helpers import prepared, train_together

from course import days
from course.config import Config, rung
from course.labs.checks import FAILED, Checked, check
from course.runs.run import Run

pytestmark = pytest.mark.slow
CHECKS = {wanted.todo: name for name, wanted in days.checks().items()}
SMALL = {
    "quick": True,
    "model": "resnet18",
    "data": "imagenet",
    "image_px": 32,
    "batch_size": 4,
    "steps": 5,
    "warmup_steps": 4,
    "val_steps": 1,
    "lr": 0.001,
}
# As in test_checks_day2: each rank's share is more than BatchNorm needs.
RANKS = SMALL | {
    "image_px": 64,
    "batch_size": 8,
    "epochs": 2,
    "steps": 2,
    "warmup_steps": 1,
    "val_steps": 2,
    "val_images": 15,
    "collective_timeout_s": 30,
    "save_weights": True,
}
SEEN = [label for label in WRONG if label not in UNSEEN]
ANSWERS = {label: WRONG[label] for label in SEEN} | RIGHT


def name_of(answer: Answer) -> str:
    """The check that looks at it: that of its TODO, or of the rung that shows it."""
    return f"day1.{answer.config['rung']}" if "rung" in answer.config else CHECKS[answer.todo]


def ranks_of(answer: Answer) -> int:
    return max(answer.ranks, days.checks()[name_of(answer)].gpus)


def configs(answer: Answer, data: Path) -> tuple[Config, Config]:
    """Of the run, and of the step before it."""
    wanted, several = days.checks()[name_of(answer)], ranks_of(answer) > 1
    small = (RANKS if several else SMALL) | {"data_root": str(data)}
    own = {key: value for key, value in answer.config.items() if key not in ("rung", "data")}
    if several:  # its own are of more files than there are
        own = {key: value for key, value in own.items() if not key.startswith("val_")}
    values = {**wanted.settings, **small}
    changed = {**values, **wanted.changes, **own}
    if changed.get("profile_steps", 0) > 1:
        changed |= {"steps": 6, "warmup_steps": 5}
    if not changed.get("workers", True):
        changed["persistent_workers"] = False
    if changed.get("precision") == "fp16":
        changed["overflow_step"] = 1
    return rung(wanted.rung, **changed), rung(wanted.against, **values)


def text_of(answer: Answer) -> str:
    text = SOLVED
    for old, new in answer.edits.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_set: Path) -> Path:
    """A folder for each answer's run, and the solution's run of the step before."""
    root = tmp_path_factory.mktemp("answers")
    alone, together, steps_before = [], [], {}
    for label, answer in ANSWERS.items():
        config, before = configs(answer, tiny_set)
        ranks, text = ranks_of(answer), text_of(answer)
        run = prepared(root / label / "run", text, config, gpus=ranks)
        (together if ranks > 1 else alone).append(run)
        if before not in steps_before:
            steps_before[before] = root / f"before-{len(steps_before)}"
            alone.append(prepared(steps_before[before], SOLVED, before))
        (root / label / "against").symlink_to(steps_before[before])
    train_together(alone, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    train_ranks(together, 2, 29610)
    return root


@pytest.fixture
def checked(trained: Path, runs_root: Path, narrow_model: None):
    def of(label: str) -> Checked:
        folder = trained / label
        return check(name_of(ANSWERS[label]), Run(folder / "run"), against=Run(folder / "against"))

    return of


@pytest.mark.parametrize("label", SEEN, ids=lambda value: value.replace(" ", "-"))
def test_a_wrong_answer_fails_and_says_where(checked, label: str) -> None:
    done = checked(label)
    failed = [part for part in done.parts if part.verdict == FAILED]
    assert failed and {part.part for part in failed} & {"correct", "mechanism"}, WRONG[label].why
    assert any(part.look_at for part in failed), done


@pytest.mark.parametrize("label", RIGHT, ids=lambda value: value.replace(" ", "-"))
def test_a_right_answer_passes(checked, label: str) -> None:
    done = checked(label)
    verdicts = {part.part: part.verdict for part in done.parts}
    assert FAILED not in (verdicts["correct"], verdicts["mechanism"]), done


def test_there_are_enough_of_both() -> None:
    assert len(SEEN) >= 60 and len(RIGHT) >= 20
